//! The connection between nodes under attack: strangers without the secret, garbage, connections that say nothing, somebody
//! in between. They are refused and counted, and nodes are served as before.

use crate::nodes::{FakeHolder, Holder, PATIENCE, certificate, in_memory, patient};
use hmac::{Hmac, KeyInit as _, Mac as _};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redrive_core::error::StoreErrorKind;
use redrive_core::store::{VerifyRequest, Work as _};
use redrive_store::remote::tcp::{ConnectionCounts, Published, TcpLimits, connect};
use sha2::Sha256;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme, SupportedProtocolVersion,
};

/// A stranger that believes every certificate.
#[derive(Debug)]
struct Believes;

impl ServerCertVerifier for Believes {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Speaks TLS with a holder without knowing anything about it.
async fn stranger(
    address: &str,
    version: &'static SupportedProtocolVersion,
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Believes))
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect("any".try_into().unwrap(), stream).await
}

/// A stranger that knows the secret, and so is as good as a node.
async fn proven(holder: &Holder) -> std::io::Result<TlsStream<TcpStream>> {
    let mut stream = stranger(&holder.address(), &TLS13).await?;
    let label = b"EXPORTER-redrive-node-proof";
    let exported = stream.get_ref().1.export_keying_material([0; 32], label, None).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&holder.published.secret).unwrap();
    mac.update(&exported);
    stream.write_all(&mac.finalize().into_bytes()).await?;
    stream.flush().await?;
    Ok(stream)
}

/// Everything that a stranger is told before the holder hangs up.
async fn told(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    bytes
}

/// Waits until a holder has counted this.
async fn counted(holder: &Holder, expected: impl Fn(ConnectionCounts) -> bool) {
    let counting = async {
        while !expected(holder.server.counts()) {
            tokio::task::yield_now().await;
        }
    };
    let counted = tokio::time::timeout(PATIENCE, counting).await;
    assert!(counted.is_ok(), "{:?}", holder.server.counts());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_with_another_certificate_is_not_trusted() {
    let story = async {
        let store = in_memory();
        let holder = Holder::of(&store, patient()).await;
        let wrong = Published { fingerprint: [1; 32], ..holder.published.clone() };
        let error = connect(holder.address(), wrong).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Untrusted, "{error}");
        assert!(error.text.contains("its certificate is not the published one"), "{error}");
        counted(&holder, |counts| counts.failed_handshakes == 1 && counts.accepted == 0).await;
        holder.connect().await.queues().await.unwrap();
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_the_secret_is_refused() {
    let story = async {
        let store = in_memory();
        let holder = Holder::of(&store, patient()).await;
        let wrong = Published { secret: [0; 32], ..holder.published.clone() };
        let error = connect(holder.address(), wrong).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unreachable, "{error}");
        assert!(error.text.contains("does not accept the secret"), "{error}");
        assert_eq!(holder.server.counts().wrong_proofs, 1);
        // The secret itself, as it stands in the table, proves nothing.
        let mut stream = stranger(&holder.address(), &TLS13).await.unwrap();
        stream.write_all(&holder.published.secret).await.unwrap();
        stream.write_all(b"\0\0\0\x0d{\"redrive\":0}").await.unwrap();
        assert!(told(&mut stream).await.is_empty());
        counted(&holder, |counts| counts.wrong_proofs == 2 && counts.accepted == 0).await;
        assert!(stranger(&holder.address(), &TLS12).await.is_err(), "an old version of TLS");
        counted(&holder, |counts| counts.failed_handshakes == 1).await;
        holder.connect().await.queues().await.unwrap();
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_version_hears_which_one_the_holder_speaks() {
    let story = async {
        let store = in_memory();
        let holder = Holder::of(&store, patient()).await;
        let mut stream = proven(&holder).await.unwrap();
        stream.write_all(b"\0\0\0\x0d{\"redrive\":0}").await.unwrap();
        stream.flush().await.unwrap();
        let heard = told(&mut stream).await;
        let hello: serde_json::Value = serde_json::from_slice(&heard[4..]).unwrap();
        assert!(hello["redrive"].as_u64().unwrap() > 0, "{hello}");
        assert_eq!(holder.server.counts().accepted, 1);
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}

/// Presents a certificate with whatever key it has.
#[derive(Debug)]
struct Presents(Arc<CertifiedKey>);

impl ResolvesServerCert for Presents {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_in_between_learns_nothing() {
    let story = async {
        let store = in_memory();
        let holder = Holder::of(&store, patient()).await;
        // With a certificate of its own.
        let between = FakeHolder::new().await;
        let connecting = tokio::spawn(connect(between.address(), holder.published.clone()));
        assert!(between.accept().await.is_err(), "the node ends the handshake");
        assert_eq!(connecting.await.unwrap().unwrap_err().kind, StoreErrorKind::Untrusted);
        // With the holder's certificate, which everybody can see, and a key of its own.
        let seen = stranger(&holder.address(), &TLS13).await.unwrap();
        let stolen = seen.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
        let key = ring::sign::any_supported_type(&certificate().1).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Presents(Arc::new(CertifiedKey::new(vec![stolen], key)))));
        let between = FakeHolder::with(config, holder.published.clone()).await;
        let connecting = tokio::spawn(connect(between.address(), holder.published.clone()));
        assert!(between.accept().await.is_err(), "the node ends the handshake");
        let error = connecting.await.unwrap().unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Untrusted, "{error}");
        assert!(error.text.contains("does not have the key of its certificate"), "{error}");
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_are_closed() {
    let story = async {
        let store = in_memory();
        // So short that waiting for it takes no time. Whatever stage a connection has reached by then, it is closed.
        let limits = TcpLimits { greeting: Duration::from_millis(50), ..TcpLimits::default() };
        let holder = Holder::of(&store, limits).await;
        for said in [b"".as_slice(), b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
            let mut stream = TcpStream::connect(holder.address()).await.unwrap();
            stream.write_all(said).await.unwrap();
            assert!(told(&mut stream).await.is_empty(), "{said:?}");
        }
        counted(&holder, |counts| counts.failed_handshakes == 3).await;
        // TLS and nothing more, and a proof that is cut off.
        for said in [b"".as_slice(), &[1; 31]] {
            if let Ok(mut stream) = stranger(&holder.address(), &TLS13).await {
                let _ = stream.write_all(said).await;
                let _ = stream.flush().await;
                assert!(told(&mut stream).await.is_empty(), "{said:?}");
            }
        }
        counted(&holder, |counts| counts.failed_handshakes == 5).await;
        assert_eq!(holder.server.counts().accepted, 0);
        // A proof without a greeting, and a greeting that is cut off.
        for said in [b"".as_slice(), b"\0\0\0\x0d{\"redrive\":"] {
            if let Ok(mut stream) = proven(&holder).await {
                let _ = stream.write_all(said).await;
                let _ = stream.flush().await;
                assert!(told(&mut stream).await.is_empty(), "{said:?}");
            }
        }
    };
    tokio::time::timeout(PATIENCE, story).await.expect("all of them are closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_do_not_take_the_places_of_nodes() {
    let story = async {
        let store = in_memory();
        let holder = Holder::of(&store, TcpLimits { handshakes: 2, connections: 2, ..patient() }).await;
        let nodes = [holder.connect().await, holder.connect().await];
        // A third node is told why it has to wait.
        let error = connect(holder.address(), holder.published.clone()).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Busy, "{error}");
        assert!(error.text.starts_with("the node that holds the store serves 2 connections"), "{error}");
        // Strangers fill the places for those who have not proved anything. One more is closed at once.
        let mut silent = Vec::new();
        for _ in 0..2 {
            silent.push(TcpStream::connect(holder.address()).await.unwrap());
        }
        let mut one_more = TcpStream::connect(holder.address()).await.unwrap();
        assert!(told(&mut one_more).await.is_empty());
        counted(&holder, |counts| counts.over_limit == 2 && counts.accepted == 2).await;
        for node in &nodes {
            node.queues().await.unwrap();
        }
        // When they are gone, and a node has left, there is room again.
        drop(silent);
        counted(&holder, |counts| counts.failed_handshakes == 2).await;
        let [gone, stays] = nodes;
        drop(gone);
        loop {
            match connect(holder.address(), holder.published.clone()).await {
                Ok(node) => break assert_eq!(node.queues().await, Ok(Vec::new())),
                Err(error) => assert_eq!(error.kind, StoreErrorKind::Busy, "{error}"),
            }
        }
        stays.queues().await.unwrap();
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}

#[test]
fn garbage_disturbs_nobody() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = in_memory();
    let (holder, node) = runtime.block_on(async {
        let holder = Holder::of(&store, patient()).await;
        let node = holder.connect().await;
        (holder, node)
    });
    let mut runner = TestRunner::new(Config { cases: 100, failure_persistence: None, ..Config::default() });
    let garbage = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..300));
    let outcome = runner.run(&garbage, |(speaks_tls, bytes)| {
        let told = runtime.block_on(async {
            let all = async {
                let told = if speaks_tls {
                    let mut stream = stranger(&holder.address(), &TLS13).await.unwrap();
                    let _ = stream.write_all(&bytes).await;
                    let _ = stream.shutdown().await;
                    told(&mut stream).await
                } else {
                    let mut stream = TcpStream::connect(holder.address()).await.unwrap();
                    let _ = stream.write_all(&bytes).await;
                    let _ = stream.shutdown().await;
                    // TLS itself may answer with an alert.
                    told(&mut stream).await.into_iter().skip(7).collect()
                };
                node.queues().await.unwrap();
                told
            };
            tokio::time::timeout(PATIENCE, all).await.expect("nothing hangs")
        });
        prop_assert!(told.is_empty(), "{:?}", told);
        Ok(())
    });
    outcome.unwrap();
    let counts = runtime.block_on(async {
        counted(&holder, |counts| counts.failed_handshakes + counts.wrong_proofs == 100).await;
        holder.server.counts()
    });
    assert_eq!(counts.accepted, 1);
    let verified = runtime.block_on(store.verify(VerifyRequest { deep: true, repair: false })).unwrap();
    assert!(verified.is_clean(), "{:?}", verified.findings);
}
