//! What is known of an engine's LoRA adapters: those that it lists, and those that it has used last.
//!
//! `/v1/models` lists every adapter with its model as `parent`. `/metrics` tells the ones that requests run with
//! (`vllm:lora_requests_info`), and how many the engine keeps ready at once (`max_lora`): it lets go of the one used
//! longest ago, so as many as that, of those seen last, are taken to be ready.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::facts::Served;
use crate::feed::record::{Adapter, Adapters};

/// Adapters remembered of those seen at work.
const MAX_RECENT: usize = Adapters::MOST;

/// What one page of metrics says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AtWork {
    /// Adapters of the requests that run.
    pub running: Vec<String>,
    /// How many the engine keeps ready.
    pub slots: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Known {
    /// All that it serves, as it says; `None`: it did not.
    served: Option<Vec<String>>,
    /// Seen at work, latest last.
    recent: VecDeque<String>,
}

impl Known {
    /// The engine's list of models.
    pub fn listed(&mut self, models: &[Served]) {
        let mut names: Vec<String> = Vec::new();
        for model in models.iter().filter(|model| model.parent.is_some()) {
            if !names.contains(&model.id) {
                names.push(model.id.clone());
            }
        }
        self.served = Some(names);
    }

    /// A reading of its metrics.
    pub fn seen(&mut self, at_work: &AtWork) {
        for name in &at_work.running {
            self.recent.retain(|known| known != name);
            self.recent.push_back(name.clone());
        }
        // Those that run are ready, whatever it says.
        let keeps = at_work.slots.max(at_work.running.len()).min(MAX_RECENT);
        self.recent.drain(..self.recent.len().saturating_sub(keeps));
    }

    /// The engine began anew: nothing is ready.
    pub fn restarted(&mut self) {
        *self = Known::default();
    }

    /// What the feed is told, within its bounds; what is ready goes first.
    pub fn told(&self) -> Adapters {
        let served = |name: &&String| self.served.as_ref().is_none_or(|served| served.contains(name));
        let ready: Vec<&String> = self.recent.iter().rev().filter(served).collect();
        let others = self.served.iter().flatten().filter(|name| !ready.contains(name));
        let all = ready.iter().map(|name| (*name, true)).chain(others.map(|name| (name, false)));
        let (mut list, mut bytes, mut complete) = (Vec::new(), 0, self.served.is_some());
        for (name, loaded) in all {
            if list.len() == Adapters::MOST || bytes + name.len() > Adapters::MOST_BYTES {
                complete = false;
                break;
            }
            bytes += name.len();
            list.push(Adapter { name: name.clone(), loaded });
        }
        Adapters { complete, list }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::record::Standing;

    fn models(names: &[&str]) -> Vec<Served> {
        let adapter = |name: &&str| Served { id: (*name).into(), parent: Some("m".into()), max_model_len: None };
        let base = Served { id: "m".into(), ..Served::default() };
        std::iter::once(base).chain(names.iter().map(adapter)).collect()
    }

    fn at_work(running: &[&str], slots: usize) -> AtWork {
        AtWork { running: running.iter().map(|name| (*name).to_owned()).collect(), slots }
    }

    #[test]
    fn the_ones_used_last_are_ready_and_the_rest_is_served() {
        let mut known = Known::default();
        assert_eq!(known.told().standing("a"), Standing::Unknown);
        known.listed(&models(&["a", "b", "c"]));
        let of = |known: &Known, name| known.told().standing(name);
        assert_eq!(
            (of(&known, "a"), of(&known, "m"), of(&known, "d")),
            (Standing::Served, Standing::Absent, Standing::Absent)
        );
        known.seen(&at_work(&["a"], 2));
        known.seen(&at_work(&[], 2));
        assert_eq!(of(&known, "a"), Standing::Loaded);
        known.seen(&at_work(&["b"], 2));
        assert_eq!((of(&known, "a"), of(&known, "b")), (Standing::Loaded, Standing::Loaded));
        known.seen(&at_work(&["c"], 2));
        assert_eq!(
            (of(&known, "a"), of(&known, "b"), of(&known, "c")),
            (Standing::Served, Standing::Loaded, Standing::Loaded)
        );
        // Unloaded by its API, it is no more there.
        known.listed(&models(&["a", "b"]));
        assert_eq!(of(&known, "c"), Standing::Absent);
        known.restarted();
        assert_eq!(of(&known, "b"), Standing::Unknown);
    }

    #[test]
    fn what_is_told_is_bounded() {
        let mut known = Known::default();
        let names: Vec<String> = (0..500).map(|n| format!("adapter-{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        known.listed(&models(&names));
        known.seen(&at_work(&["adapter-499"], 1));
        let told = known.told();
        assert!(!told.complete && told.list.len() <= Adapters::MOST);
        assert_eq!((told.standing("adapter-499"), told.standing("adapter-498")), (Standing::Loaded, Standing::Unknown));
        let long = "x".repeat(Adapters::MOST_BYTES + 1);
        known.listed(&models(&["a", &long]));
        assert_eq!((known.told().standing("a"), known.told().standing(&long)), (Standing::Served, Standing::Unknown));
    }
}
