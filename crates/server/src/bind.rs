//! Which addresses a server may listen on. It decides and opens nothing.

use std::net::{IpAddr, SocketAddr};

/// What keeps strangers out of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Callers need a token.
    pub auth: bool,
    /// The server has a certificate and speaks TLS itself.
    pub tls: bool,
    /// A proxy that speaks TLS is in front of the server.
    pub behind_proxy: bool,
}

/// Decides whether a server with this protection may listen on an address. Loopback is always allowed, because only
/// this machine reaches it. Any other address needs authentication and TLS, its own or that of a proxy.
///
/// # Errors
/// What is missing, and the flags that provide it.
pub fn check_bind(address: SocketAddr, protection: Protection) -> Result<(), String> {
    let Protection { auth, tls, behind_proxy } = protection;
    if !auth && behind_proxy {
        return Err("--no-auth and --behind-proxy exclude each other: whoever reaches the proxy could do everything; \
                    remove --no-auth"
            .into());
    }
    if is_loopback(address.ip()) {
        return Ok(());
    }
    if !auth {
        return Err(format!(
            "{address} can be reached from other machines, and --no-auth would let all of them in; \
             remove --no-auth, or listen on 127.0.0.1"
        ));
    }
    if !tls && !behind_proxy {
        return Err(format!(
            "{address} can be reached from other machines, and tokens would cross the network unencrypted; \
             give --tls-cert and --tls-key, or --behind-proxy if a proxy in front of the server speaks TLS, \
             or listen on 127.0.0.1"
        ));
    }
    Ok(())
}

/// Whether only this machine reaches the address.
fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_protected_server_leaves_loopback() {
        let nothing = Protection { auth: false, tls: false, behind_proxy: false };
        let auth = Protection { auth: true, ..nothing };
        let tls = Protection { tls: true, ..nothing };
        let auth_tls = Protection { tls: true, ..auth };
        let auth_proxy = Protection { behind_proxy: true, ..auth };
        let open_proxy = Protection { behind_proxy: true, ..nothing };
        let all = Protection { auth: true, tls: true, behind_proxy: true };
        let loopback = ["127.0.0.1:7373", "[::1]:7373", "127.8.9.10:1", "[::ffff:127.0.0.1]:1"];
        let others = [
            "0.0.0.0:7373",
            "[::]:7373",
            "192.168.1.5:80",
            "10.0.0.1:80",
            "8.8.8.8:443",
            "[fe80::1]:1",
            "[2001:db8::1]:1",
            "[::ffff:10.0.0.1]:1",
        ];
        for (protection, on_loopback, elsewhere) in [
            (nothing, Ok(()), Err("--no-auth")),
            (tls, Ok(()), Err("--no-auth")),
            (auth, Ok(()), Err("--tls-cert")),
            (auth_tls, Ok(()), Ok(())),
            (auth_proxy, Ok(()), Ok(())),
            (all, Ok(()), Ok(())),
            (open_proxy, Err("--behind-proxy"), Err("--behind-proxy")),
        ] {
            for (addresses, expected) in [(&loopback[..], on_loopback), (&others[..], elsewhere)] {
                for address in addresses {
                    let found = check_bind(address.parse().unwrap(), protection);
                    match (&found, expected) {
                        (Ok(()), Ok(())) => {}
                        (Err(text), Err(flag)) => assert!(text.contains(flag), "{address}: {text}"),
                        (_, _) => panic!("{address} {protection:?}: {found:?}, expected {expected:?}"),
                    }
                }
            }
        }
    }
}
