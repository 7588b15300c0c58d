//! How nodes know the holder of a term, and how it knows them: a certificate that nobody signed, of which the fingerprint
//! is pinned, and a secret, which is proved over the keys of the very connection. Secrets never travel and are never
//! shown.

use crate::entropy::Entropy;
use hmac::{Hmac, KeyInit as _, Mac as _};
use redrive_core::error::{StoreError, StoreErrorKind};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::sync::Arc;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, ConnectionCommon, DigitallySignedStruct, ServerConfig,
    SignatureScheme, version::TLS13,
};

/// Bytes of a proof, and of what it is computed over.
pub(super) const PROOF_BYTES: usize = 32;
/// What the keys that a proof is computed over are exported for. Another protocol on the same certificate would use
/// another label.
const LABEL: &[u8] = b"EXPORTER-redrive-node-proof";
/// The name in the certificate, for whoever looks at the connection. Nobody checks it.
const NAME: &str = "redrive-node";

/// What the holder of a term publishes where only nodes can read it, beside its address.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The SHA-256 of the holder's certificate.
    pub fingerprint: [u8; 32],
    /// What a node proves to know. Whoever has it may do everything with the store.
    pub secret: [u8; 32],
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fingerprint: String = self.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        f.debug_struct("Published").field("fingerprint", &fingerprint).finish_non_exhaustive()
    }
}

/// How the holder of one term is known. Made anew for every term and kept in memory only.
pub struct Identity {
    published: Published,
    tls: Arc<ServerConfig>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("published", &self.published).finish_non_exhaustive()
    }
}

fn cannot_make(what: impl fmt::Display) -> StoreError {
    let text = format!("cannot make a certificate for the connections between nodes: {what}");
    StoreError::new(StoreErrorKind::Unsupported, text)
}

fn cannot_prove(what: impl fmt::Display) -> StoreError {
    let text = format!("the keys of a connection between nodes cannot be used for a proof: {what}");
    StoreError::new(StoreErrorKind::Protocol, text)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

impl Identity {
    /// Makes an identity for a term that begins.
    ///
    /// # Errors
    /// [`StoreErrorKind::Unsupported`] if no certificate can be made on this machine.
    pub fn new(entropy: &dyn Entropy) -> Result<Self, StoreError> {
        let mut secret = [0; 32];
        entropy.fill(&mut secret);
        let key = rcgen::KeyPair::generate().map_err(cannot_make)?;
        let parameters = rcgen::CertificateParams::new(vec![NAME.to_owned()]).map_err(cannot_make)?;
        let certificate = parameters.self_signed(&key).map_err(cannot_make)?.der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(cannot_make)?;
        let fingerprint = fingerprint(&certificate);
        let mut tls = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(cannot_make)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(cannot_make)?;
        // Connections are few and live long: nothing is gained by resuming one.
        tls.send_tls13_tickets = 0;
        Ok(Self { published: Published { fingerprint, secret }, tls: Arc::new(tls) })
    }

    /// What nodes need to know to connect.
    #[must_use]
    pub fn published(&self) -> Published {
        self.published.clone()
    }

    /// How the holder speaks TLS.
    pub(super) fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }

    /// Whether the other end of a connection has proved that it knows the secret. Takes the same time for any proof.
    pub(super) fn accepts<T>(&self, proof: &[u8], connection: &ConnectionCommon<T>) -> bool {
        let expected = self.published.mac(connection);
        expected.is_ok_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

impl Published {
    /// The proof to know the secret, for this connection only.
    pub(super) fn proof<T>(&self, connection: &ConnectionCommon<T>) -> Result<[u8; PROOF_BYTES], StoreError> {
        Ok(self.mac(connection)?.finalize().into_bytes().into())
    }

    fn mac<T>(&self, connection: &ConnectionCommon<T>) -> Result<Hmac<Sha256>, StoreError> {
        let exported = connection.export_keying_material([0; PROOF_BYTES], LABEL, None);
        self.mac_over(&exported.map_err(cannot_prove)?)
    }

    fn mac_over(&self, exported: &[u8; PROOF_BYTES]) -> Result<Hmac<Sha256>, StoreError> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.secret).map_err(cannot_prove)?;
        mac.update(exported);
        Ok(mac)
    }

    /// How a node speaks TLS with the holder of this identity.
    pub(super) fn tls(&self) -> Result<ClientConfig, StoreError> {
        let provider = provider();
        let signatures = provider.signature_verification_algorithms;
        let pinned = Pinned { fingerprint: self.fingerprint, signatures };
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(cannot_make)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned))
            .with_no_client_auth();
        tls.enable_sni = false;
        tls.resumption = Resumption::disabled();
        Ok(tls)
    }

    /// A name to ask TLS for. It is neither sent nor checked.
    pub(super) fn server_name() -> Result<ServerName<'static>, StoreError> {
        ServerName::try_from(NAME).map_err(cannot_make)
    }
}

/// Accepts one certificate, whoever signed it and whatever name is in it. That the other end has the certificate's key is
/// still checked: a certificate is public.
#[derive(Debug)]
struct Pinned {
    fingerprint: [u8; 32],
    signatures: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if fingerprint(end_entity) == self.fingerprint {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("nodes speak TLS 1.3 only".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.signatures)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::System;

    #[test]
    fn every_term_has_an_identity_of_its_own() {
        let [one, two] = [0, 1].map(|_| Identity::new(&System).unwrap().published());
        assert_ne!(one.fingerprint, two.fingerprint);
        assert_ne!(one.secret, two.secret);
    }

    #[test]
    fn a_secret_is_never_shown() {
        let published = Published { fingerprint: [0xab; 32], secret: [77; 32] };
        let shown = format!("{published:?}");
        assert!(shown.contains(&"ab".repeat(32)), "{shown}");
        assert!(!shown.contains("77") && !shown.contains("4d4d"), "{shown}");
        let identity = Identity::new(&System).unwrap();
        assert!(!format!("{identity:?}").contains("secret"), "{identity:?}");
    }

    #[test]
    fn a_published_identity_survives_its_way_through_a_database() {
        let published = Identity::new(&System).unwrap().published();
        let stored = serde_json::to_vec(&published).unwrap();
        assert_eq!(serde_json::from_slice::<Published>(&stored).unwrap(), published);
    }

    #[test]
    fn a_proof_holds_for_one_secret_and_one_connection() {
        let published = Published { fingerprint: [0; 32], secret: [1; 32] };
        let other = Published { secret: [2; 32], ..published.clone() };
        let proof = published.mac_over(&[3; 32]).unwrap().finalize().into_bytes();
        let proves = |who: &Published, exported| who.mac_over(exported).unwrap().verify_slice(&proof).is_ok();
        assert!(proves(&published, &[3; 32]));
        assert!(!proves(&other, &[3; 32]), "another secret");
        assert!(!proves(&published, &[4; 32]), "another connection");
    }
}
