//! How a pick is told to Envoy.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::config::{Selection, SelectionMode};
use crate::replicas::{Pick, Target};

/// What vLLM takes the data-parallel rank of a request from.
pub const RANK_HEADER: &str = "x-data-parallel-rank";

/// What the P/D sidecars before engines that decode take the engine from that prefills, as `host:port` (llm-d's).
pub const PREFILL_HEADER: &str = "x-prefiller-host-port";

/// The request headers that make Envoy send a request where it was decided.
pub fn selection_headers<'a>(selection: &'a Selection, pick: &Pick) -> Vec<(&'a str, String)> {
    let list = |targets: &mut dyn Iterator<Item = &Target>| {
        targets.map(|t| t.address.as_ref()).collect::<Vec<&str>>().join(",")
    };
    let mut headers = match selection.mode {
        SelectionMode::StatefulSession => {
            let mut headers = vec![(selection.header.as_str(), STANDARD.encode(pick.best.address.as_bytes()))];
            if !pick.next.is_empty() {
                headers.push((&selection.fallback_header, list(&mut pick.next.iter())));
            }
            headers
        }
        SelectionMode::OverrideHost => {
            vec![(selection.header.as_str(), list(&mut std::iter::once(&pick.best).chain(&pick.next)))]
        }
    };
    if let Some(rank) = pick.rank {
        headers.push((RANK_HEADER, rank.to_string()));
    }
    if let Some(prefill) = &pick.prefill {
        headers.push((PREFILL_HEADER, prefill.target.address.to_string()));
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::BookingId;
    use crate::replicas::pools::Prefill;
    use crate::routing::Reason;

    fn pick(next: &[&str]) -> Pick {
        let target = |a: &str| Target { address: a.into(), rank: 0 };
        Pick {
            best: target("10.0.0.1:8000"),
            rank: None,
            next: next.iter().map(|a| target(a)).collect(),
            booking: BookingId(1),
            prefill: None,
            matched: 0,
            predicted: 0,
            cost: 0.0,
            reason: Reason::Only,
            receipt: None,
        }
    }

    #[test]
    fn each_mode_has_its_form() {
        let mut selection = Selection {
            mode: SelectionMode::StatefulSession,
            header: "a".into(),
            fallback_header: "b".into(),
            outcome_header: None,
            session_header: None,
        };
        let next = ["10.0.0.2:8000", "10.0.0.3:8000"];
        assert_eq!(
            selection_headers(&selection, &pick(&next)),
            [("a", "MTAuMC4wLjE6ODAwMA==".to_owned()), ("b", "10.0.0.2:8000,10.0.0.3:8000".to_owned())]
        );
        assert_eq!(selection_headers(&selection, &pick(&[])).len(), 1);
        selection.mode = SelectionMode::OverrideHost;
        assert_eq!(
            selection_headers(&selection, &pick(&next)),
            [("a", "10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000".to_owned())]
        );
        let ranked = Pick { rank: Some(3), ..pick(&[]) };
        assert_eq!(
            selection_headers(&selection, &ranked),
            [("a", "10.0.0.1:8000".to_owned()), (RANK_HEADER, "3".to_owned())]
        );
        let prefill = Prefill { target: ranked.best.clone(), booking: BookingId(2), matched: 0 };
        let apart = Pick { prefill: Some(prefill), ..pick(&[]) };
        assert_eq!(
            selection_headers(&selection, &apart),
            [("a", "10.0.0.1:8000".to_owned()), (PREFILL_HEADER, "10.0.0.1:8000".to_owned())]
        );
    }
}
