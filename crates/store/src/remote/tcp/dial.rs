//! The side that asks: connects to a holder, makes sure that it is the one that was named, and proves to be a node.

use super::identity::Published;
use super::node::HolderAddress;
use super::prepare;
use crate::remote::connection::Connection;
use crate::remote::greet;
use crate::remote::peer::Peer;
use crate::remote::protocol::Hello;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::limits;
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{CertificateError, Error as TlsError};

/// Connects to a holder. The connection breaks at the latest when `until` returns the reason.
pub(super) async fn dial(
    holder: &HolderAddress,
    until: impl Future<Output = StoreError> + Send + 'static,
) -> Result<Connection, StoreError> {
    let too_slow = |_| {
        let within = limits::NODE_DIAL_MAX.as_secs();
        let text = format!("{}, {}, does not answer within {within} s", Peer::Node, holder.address);
        StoreError::new(StoreErrorKind::Unreachable, text)
    };
    tokio::time::timeout(limits::NODE_DIAL_MAX, dial_patiently(holder, until)).await.map_err(too_slow)?
}

async fn dial_patiently(
    holder: &HolderAddress,
    until: impl Future<Output = StoreError> + Send + 'static,
) -> Result<Connection, StoreError> {
    let nobody = |error: io::Error| {
        let text = format!("{}, {}, cannot be reached: {error}", Peer::Node, holder.address);
        StoreError::new(StoreErrorKind::Unreachable, text)
    };
    let stream = TcpStream::connect(holder.address.as_str()).await.map_err(nobody)?;
    prepare(&stream);
    let connector = TlsConnector::from(Arc::new(holder.published.tls()?));
    let connected = connector.connect(Published::server_name()?, stream).await;
    let stream =
        connected.map_err(|error| not_the_holder(holder, &error).unwrap_or_else(|| nobody(error)))?;
    let proof = holder.published.proof(stream.get_ref().1)?;
    let opening = [proof.as_slice(), &Hello::new().pack()?].concat();
    let (from, to) = tokio::io::split(stream);
    let refused = || {
        let text = format!(
            "{}, {}, hung up without a greeting: it does not accept the secret of term {}, or is ending; the secret \
             must be the one that it published for this term",
            Peer::Node,
            holder.address,
            holder.term
        );
        StoreError::new(StoreErrorKind::Unreachable, text)
    };
    let greeted = greet(from, to, &opening, Peer::Node, until).await;
    // Nothing but the greeting was on its way, so an end that is gone leaves nothing in doubt.
    let hung_up = greeted.as_ref().is_err_and(|error| error.kind == StoreErrorKind::Unreachable);
    if hung_up {
        return Err(refused());
    }
    greeted?.ok_or_else(refused)
}

/// The error of an end that is not the holder that was named, if that is what is wrong.
fn not_the_holder(holder: &HolderAddress, error: &io::Error) -> Option<StoreError> {
    let TlsError::InvalidCertificate(wrong) = error.get_ref()?.downcast_ref()? else { return None };
    let what = if *wrong == CertificateError::ApplicationVerificationFailure {
        "its certificate is not the published one"
    } else {
        "it does not have the key of its certificate"
    };
    let text = format!(
        "what answers at {} is not the node that holds the store under term {}: {what}; either another node holds the \
         store by now, or somebody is between the two",
        holder.address, holder.term
    );
    Some(StoreError::new(StoreErrorKind::Untrusted, text))
}
