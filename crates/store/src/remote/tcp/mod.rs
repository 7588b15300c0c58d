//! A store that another node holds, reached over TCP. What travels is the same as on the socket of a data directory;
//! what is different is how both ends know each other. The holder makes an [`Identity`] for each term and publishes it
//! where only nodes can read it: a certificate, of which nodes check the fingerprint, and a secret, which nodes prove to
//! know before they send anything else. Nothing here knows where the identity is published: that is [`Holders`].

mod dial;
mod identity;
mod node;
mod repeat;
mod server;

pub use identity::{Identity, Published};
pub use node::{FixedHolder, HolderAddress, Holders, NodeStore, connect};
pub use server::{ConnectionCounts, TcpLimits, TcpServer, serve};

use redrive_core::limits;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long a connection is quiet before the operating system asks whether the other end is still there.
const PROBE_AFTER: Duration = Duration::from_secs(4);
/// The time between two such questions.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// How many of them stay without an answer before the connection is broken.
const PROBES: u32 = 3;

/// Prepares a connection: small frames leave at once, and an end that has vanished is noticed
/// ([`limits::NODE_SILENCE_MAX`]). A system that lacks one of the options works without it.
fn prepare(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, PROBE_AFTER);
    let _ = sockopt::set_tcp_keepintvl(stream, PROBE_EVERY);
    let _ = sockopt::set_tcp_keepcnt(stream, PROBES);
    #[cfg(target_os = "linux")]
    {
        let millis = u32::try_from(limits::NODE_SILENCE_MAX.as_millis()).unwrap_or(u32::MAX);
        let _ = sockopt::set_tcp_user_timeout(stream, millis);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vanished_end_is_noticed_within_the_limit() {
        assert_eq!(PROBE_AFTER + PROBE_EVERY * PROBES, limits::NODE_SILENCE_MAX);
    }
}
