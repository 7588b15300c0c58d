//! The certificate of a server: two files, which are read again when they change, so that a renewed certificate needs
//! no restart.

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The protocols that a server offers within TLS, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A certificate and its key in files.
#[derive(Debug)]
pub struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    loaded: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    version: Version,
    config: Arc<ServerConfig>,
}

/// What changes when somebody replaces or rewrites one of the files.
type Version = [Option<(SystemTime, u64, u64)>; 2];

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file is wrong, and why.
    pub fn load(certificate: PathBuf, key: PathBuf) -> Result<Self, String> {
        let version = version(&certificate, &key);
        let config = read(&certificate, &key)?;
        Ok(Self { certificate, key, loaded: Mutex::new(Loaded { version, config }) })
    }

    /// The configuration for the next connection. If the files have changed, they are read again. As long as they do
    /// not fit each other, perhaps because only one of them has been replaced yet, the previous certificate is used.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        let version = version(&self.certificate, &self.key);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.version != version {
            match read(&self.certificate, &self.key) {
                Ok(config) => {
                    tracing::info!(certificate = %self.certificate.display(), "read the changed certificate");
                    *loaded = Loaded { version, config };
                }
                Err(error) => tracing::warn!(%error, "the previous certificate is still used"),
            }
        }
        Arc::clone(&loaded.config)
    }
}

fn version(certificate: &Path, key: &Path) -> Version {
    [certificate, key].map(|file| {
        let about = std::fs::metadata(file).ok()?;
        Some((about.modified().ok()?, about.len(), about.ino()))
    })
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, String> {
    let of = |file: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| of(certificate, &error))?;
    if chain.is_empty() {
        return Err(of(certificate, &"there is no certificate in it; it must be in PEM form"));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| of(key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| {
            format!("{} and {} do not fit each other: {error}", certificate.display(), key.display())
        })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Arc::new(config))
}
