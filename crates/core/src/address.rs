//! The addresses that messages may be sent to. A user who may set a queue's target must not thereby reach the
//! machine itself, its neighbours or the metadata service of its cloud. This module only examines addresses:
//! the executor resolves names and connects, and must connect to exactly the address that was checked here.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Why an address is not public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPublic {
    /// This machine.
    Loopback,
    /// A private network, including a unique local one of IPv6.
    Private,
    /// Behind a provider's address translation.
    Shared,
    /// This network segment.
    LinkLocal,
    /// A cloud's metadata service, which hands out credentials.
    Metadata,
    /// The unspecified address, which connects to this machine on many systems.
    Unspecified,
    /// A multicast group.
    Multicast,
    /// The broadcast address of this network.
    Broadcast,
    /// Reserved for examples in documentation.
    Documentation,
    /// IPv4 carried inside IPv6 in a way that hides the destination.
    Tunnel,
    /// Reserved for purposes of the network itself.
    Reserved,
}

impl fmt::Display for NotPublic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::Shared => "shared",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Unspecified => "unspecified",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
            Self::Documentation => "documentation",
            Self::Tunnel => "tunnel",
            Self::Reserved => "reserved",
        })
    }
}

/// Metadata services outside the ranges that are always blocked, or inside a range that can be allowed.
const METADATA_V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
];
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// Why this address is not public. `None` if it is.
#[must_use]
pub fn not_public(address: IpAddr) -> Option<NotPublic> {
    match address {
        IpAddr::V4(v4) => not_public_v4(v4),
        IpAddr::V6(v6) => not_public_v6(v6),
    }
}

fn not_public_v4(address: Ipv4Addr) -> Option<NotPublic> {
    if METADATA_V4.contains(&address) {
        return Some(NotPublic::Metadata);
    }
    match address.octets() {
        [0, ..] => Some(NotPublic::Unspecified),
        [127, ..] => Some(NotPublic::Loopback),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Some(NotPublic::Private),
        [100, 64..=127, ..] => Some(NotPublic::Shared),
        [169, 254, ..] => Some(NotPublic::LinkLocal),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Some(NotPublic::Documentation),
        [192, 88, 99, _] => Some(NotPublic::Tunnel),
        [224..=239, ..] => Some(NotPublic::Multicast),
        [255, 255, 255, 255] => Some(NotPublic::Broadcast),
        [192, 0, 0, _] | [198, 18 | 19, ..] | [240..=255, ..] => Some(NotPublic::Reserved),
        _ => None,
    }
}

fn v4_of(high: u16, low: u16) -> Ipv4Addr {
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    Ipv4Addr::new(a, b, c, d)
}

fn not_public_v6(address: Ipv6Addr) -> Option<NotPublic> {
    if METADATA_V6.contains(&address) {
        return Some(NotPublic::Metadata);
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(NotPublic::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(NotPublic::Loopback),
        // The same address in another notation, or the far side of a translator: the embedded address counts.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            not_public_v4(v4_of(high, low))
        }
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Some(NotPublic::Private),
        [0xfe80..=0xfebf, ..] => Some(NotPublic::LinkLocal),
        [0xff00..=0xffff, ..] => Some(NotPublic::Multicast),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(NotPublic::Documentation),
        // Teredo, 6to4, the local translator, and ISATAP, whose last half ends in an IPv4 address.
        [0x2001, 0, ..] | [0x2002, ..] | [0x64, 0xff9b, 1, ..] | [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => {
            Some(NotPublic::Tunnel)
        }
        [0x2001, 1..=0x1ff, ..] => Some(NotPublic::Reserved),
        [0x2000..=0x3fff, ..] => None,
        _ => Some(NotPublic::Reserved),
    }
}

/// A range of addresses: `10.1.0.0/16`, `fd12::/16`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    bits: u8,
}

impl Network {
    /// Whether the network contains the address. An IPv4 address is the same in its IPv6 notation.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address.to_canonical()) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let ignored = 32_u32.saturating_sub(self.bits.into());
                let mask = u32::MAX.checked_shl(ignored).unwrap_or(0);
                base.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let ignored = 128_u32.saturating_sub(self.bits.into());
                let mask = u128::MAX.checked_shl(ignored).unwrap_or(0);
                base.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || format!("{text:?} is not an address or a network such as 10.1.0.0/16, fd12::/16 or 10.1.2.3");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let base: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        // A network in the IPv6 notation of IPv4 addresses would never match, because they are compared as
        // IPv4.
        if bits > most || base != base.to_canonical() {
            return Err(wrong());
        }
        Ok(Self { base, bits })
    }
}
crate::ids::serde_as_text!(Network);

/// Which addresses may be reached. Public ones always are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressGuard {
    /// Whether this machine and private networks are allowed. This never allows link-local addresses and
    /// metadata services.
    pub allow_private: bool,
    /// Networks that are allowed, of whatever kind.
    pub allow: Vec<Network>,
}

impl AddressGuard {
    /// Refuses addresses that are neither public nor allowed.
    ///
    /// # Errors
    /// Returns why the address is not public.
    pub fn check(&self, address: IpAddr) -> Result<(), NotPublic> {
        let Some(why) = not_public(address) else { return Ok(()) };
        let near = match why {
            NotPublic::Loopback | NotPublic::Private | NotPublic::Shared => true,
            NotPublic::LinkLocal
            | NotPublic::Metadata
            | NotPublic::Unspecified
            | NotPublic::Multicast
            | NotPublic::Broadcast
            | NotPublic::Documentation
            | NotPublic::Tunnel
            | NotPublic::Reserved => false,
        };
        let allowed =
            near && self.allow_private || self.allow.iter().any(|network| network.contains(address));
        if allowed { Ok(()) } else { Err(why) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str) -> Option<NotPublic> {
        not_public(text.parse().unwrap_or_else(|_| panic!("{text} is not an address")))
    }

    /// Checks the first and last address of every range, and the addresses just outside.
    #[test]
    fn every_range_from_end_to_end() {
        use NotPublic::{
            Broadcast, Documentation, LinkLocal, Loopback, Metadata, Multicast, Private, Reserved, Shared,
            Tunnel, Unspecified,
        };
        let blocked: &[(&[&str], NotPublic)] = &[
            (&["0.0.0.0", "0.0.0.1", "0.255.255.255", "::"], Unspecified),
            (&["127.0.0.0", "127.0.0.1", "127.1.2.3", "127.255.255.255", "::1"], Loopback),
            (&["10.0.0.0", "10.0.0.1", "10.255.255.255"], Private),
            (&["172.16.0.0", "172.20.1.1", "172.31.255.255"], Private),
            (&["192.168.0.0", "192.168.1.1", "192.168.255.255"], Private),
            (&["fc00::", "fc00::1", "fd12:3456::1", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"], Private),
            (&["fec0::", "feff:ffff::1"], Private),
            (&["100.64.0.0", "100.64.0.1", "100.127.255.255"], Shared),
            (&["169.254.0.0", "169.254.1.1", "169.254.169.253", "169.254.255.255"], LinkLocal),
            (&["fe80::", "fe80::1", "febf:ffff::1"], LinkLocal),
            (&["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16"], Metadata),
            (&["fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"], Metadata),
            (&["192.0.2.0", "192.0.2.255", "198.51.100.0", "198.51.100.255", "203.0.113.0"], Documentation),
            (&["203.0.113.255", "2001:db8::", "2001:db8:ffff::1", "3fff::", "3fff:fff::1"], Documentation),
            (&["224.0.0.0", "224.0.0.251", "239.255.255.255", "ff00::", "ff02::1", "ffff::"], Multicast),
            (&["255.255.255.255", "::ffff:255.255.255.255"], Broadcast),
            (&["192.0.0.0", "192.0.0.170", "192.0.0.255", "198.18.0.0", "198.19.255.255"], Reserved),
            (&["240.0.0.0", "255.255.255.254"], Reserved),
            (&["2001:1::1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:1ff::1"], Reserved),
            (&["::2", "::127.0.0.1", "::8.8.8.8", "100::1", "::ffff:0:127.0.0.1", "5f00::1"], Reserved),
            (&["1000::1", "4000::1", "8000::1", "fbff::1", "fe00::1", "fe7f::1"], Reserved),
            (&["192.88.99.0", "192.88.99.1", "192.88.99.255"], Tunnel),
            (&["2002::", "2002:7f00:1::1", "2002:808:808::1", "2002:ffff::1"], Tunnel),
            (&["2001::", "2001:0:4136:e378:8000:63bf:3fff:fdd2"], Tunnel),
            (&["64:ff9b:1::1", "64:ff9b:1:ffff::7f00:1"], Tunnel),
            (&["2a00::5efe:7f00:1", "2a00::200:5efe:a00:1"], Tunnel),
            (&["::ffff:127.0.0.1", "::ffff:7f00:1", "64:ff9b::127.0.0.1"], Loopback),
            (&["::ffff:10.0.0.1", "::ffff:192.168.0.1", "64:ff9b::10.0.0.1", "64:ff9b::ac10:1"], Private),
            (&["::ffff:100.64.0.1", "64:ff9b::100.64.0.1"], Shared),
            (&["::ffff:0.0.0.0", "64:ff9b::"], Unspecified),
        ];
        let mut looked_at = 0;
        for (addresses, why) in blocked {
            for address in *addresses {
                assert_eq!(seen(address), Some(*why), "{address}");
                looked_at += 1;
            }
        }
        let public =
            "1.0.0.0 1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255
            128.0.0.0 168.63.129.15 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0
            192.0.3.0 192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0
            198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0 223.255.255.255 2000::1 2001:200::1
            2001:4860:4860::8888 2001:db7::1 2001:db9::1 2003::1 2606:4700::1111 2a00:1450::1 3ffe::1
            3fff:1000::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8";
        for address in public.split_whitespace() {
            assert_eq!(seen(address), None, "{address}");
            looked_at += 1;
        }
        assert!(looked_at >= 140, "{looked_at}");
    }

    #[test]
    fn private_may_be_allowed_and_metadata_only_by_name() {
        let near = AddressGuard { allow_private: true, allow: Vec::new() };
        for address in
            ["127.0.0.1", "10.0.0.1", "::1", "fd12::1", "100.64.0.1", "::ffff:127.0.0.1", "8.8.8.8"]
        {
            assert_eq!(near.check(address.parse().unwrap()), Ok(()), "{address}");
        }
        for address in
            ["169.254.169.254", "169.254.1.1", "fe80::1", "fd00:ec2::254", "100.100.100.200", "0.0.0.0"]
        {
            assert!(near.check(address.parse().unwrap()).is_err(), "{address}");
        }
        let named = AddressGuard { allow_private: false, allow: vec!["169.254.169.254".parse().unwrap()] };
        assert_eq!(named.check("::ffff:169.254.169.254".parse().unwrap()), Ok(()));
        assert_eq!(named.check("127.0.0.1".parse().unwrap()), Err(NotPublic::Loopback));
    }

    #[test]
    fn networks_are_read_and_know_what_they_contain() {
        let holds = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().contains(address.parse().unwrap())
        };
        assert!(holds("10.1.0.0/16", "10.1.255.255") && !holds("10.1.0.0/16", "10.2.0.0"));
        assert!(holds("0.0.0.0/0", "255.1.1.1") && !holds("0.0.0.0/0", "::1"));
        assert!(
            holds("fd12::/16", "fd12:1::1") && !holds("fd12::/16", "fd13::1") && holds("::/0", "fe80::1")
        );
        assert!(holds("10.1.2.3", "10.1.2.3") && !holds("10.1.2.3", "10.1.2.4"));
        for wrong in ["", "10.1", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "localhost", "::ffff:10.0.0.0/104"]
        {
            assert!(wrong.parse::<Network>().unwrap_err().contains("10.1.0.0/16"), "{wrong}");
        }
        let text = "10.1.0.0/16";
        assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
    }
}
