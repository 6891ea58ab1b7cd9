//! Networks by their prefixes, as in `10.0.0.0/8`: from where somebody may ask.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::ConfigError;

/// A list of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<Network>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    /// How many bits of it count.
    length: u32,
}

impl Networks {
    /// Reads a list of texts. One that is no network is named, with its mend.
    pub fn read(list: &[(String, &Value)]) -> Result<Networks, ConfigError> {
        let read = |(path, text): &(String, &Value)| match text {
            Value::String(text) => Network::parse(text).map_err(|what| ConfigError::new(path, what)),
            _ => Err(ConfigError::new(path, "must be a network as a string: \"10.0.0.0/8\" or \"10.1.2.3\"")),
        };
        list.iter().map(read).collect::<Result<_, _>>().map(Networks)
    }

    /// Whether none is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `ip:port` is in one of them. What is no such address (a Unix socket) is in none.
    pub fn have(&self, peer: &str) -> bool {
        let Ok(peer) = peer.parse::<SocketAddr>() else { return false };
        let address = peer.ip().to_canonical();
        self.0.iter().any(|network| network.has(address))
    }
}

impl Network {
    fn parse(text: &str) -> Result<Network, String> {
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let mend = "write a network as \"10.0.0.0/8\" or \"fd00::/8\", or an address as \"10.1.2.3\"";
        let address: IpAddr =
            address.parse().map_err(|_| format!("\"{text}\" must be a network of addresses: {mend}"))?;
        let bits = width(address);
        let length = match length.map(str::parse::<u32>) {
            None => bits,
            Some(Ok(length)) if length <= bits => length,
            Some(_) => return Err(format!("\"{text}\" must have a whole number from 0 to {bits} behind the slash")),
        };
        let network = Network { address, length };
        if network.masked(address) != number(address) {
            // Nobody knows whether the address or the network was meant.
            return Err(format!(
                "\"{text}\" must be one or the other: \"{}\" for the network, \"{address}\" for the address",
                network.first()
            ));
        }
        Ok(network)
    }

    fn has(&self, address: IpAddr) -> bool {
        width(address) == width(self.address) && self.masked(address) == number(self.address)
    }

    /// The bits that count.
    fn masked(&self, address: IpAddr) -> u128 {
        let rest = width(address).saturating_sub(self.length);
        let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
        number(address) & mask
    }

    /// With no bit set beyond those.
    fn first(&self) -> String {
        let bits = self.masked(self.address);
        let address = match self.address {
            IpAddr::V4(_) => IpAddr::V4(u32::try_from(bits).unwrap_or_default().into()),
            IpAddr::V6(_) => IpAddr::V6(bits.into()),
        };
        format!("{address}/{}", self.length)
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(all: &[&str]) -> Networks {
        let values: Vec<Value> = all.iter().map(|text| Value::from(*text)).collect();
        let list: Vec<(String, &Value)> = values.iter().map(|value| ("x".to_owned(), value)).collect();
        Networks::read(&list).unwrap()
    }

    #[test]
    fn an_address_is_in_the_networks_that_have_its_bits() {
        let some = networks(&["10.0.0.0/8", "192.168.7.4", "192.168.8.0/30", "fd00::/8", "::1"]);
        for peer in ["10.255.0.1:1", "192.168.7.4:65535", "192.168.8.3:9", "[fd12::1]:80", "[::1]:80"] {
            assert!(some.have(peer), "{peer}");
        }
        // IPv4 on a socket of both kinds.
        assert!(some.have("[::ffff:10.1.2.3]:80"));
        for peer in ["11.0.0.1:1", "192.168.7.5:1", "192.168.8.4:9", "[fe80::1]:80", "[::2]:80", "10.0.0.1", "@/x", ""]
        {
            assert!(!some.have(peer), "{peer}");
        }
        assert!(networks(&["0.0.0.0/0"]).have("8.8.8.8:53") && !networks(&["0.0.0.0/0"]).have("[::1]:53"));
        assert!(networks(&["::/0"]).have("[::1]:53"));
        assert!(!networks(&[]).have("127.0.0.1:1") && networks(&[]).is_empty());
    }

    #[test]
    fn what_is_no_network_is_named_with_its_mend() {
        let said = |value: Value| Networks::read(&[("allow[0]".to_owned(), &value)]).unwrap_err().to_string();
        assert!(said("office".into()).starts_with("allow[0] \"office\" must be a network of addresses: write"));
        for text in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/x"] {
            assert!(said(text.into()).ends_with("must have a whole number from 0 to 32 behind the slash"), "{text}");
        }
        let both = said("10.1.2.3/8".into());
        assert!(both.ends_with("\"10.0.0.0/8\" for the network, \"10.1.2.3\" for the address"), "{both}");
        assert!(said("fd00::1/8".into()).contains("\"fd00::/8\" for the network"));
        assert!(said(8.into()).starts_with("allow[0] must be a network as a string"));
    }
}
