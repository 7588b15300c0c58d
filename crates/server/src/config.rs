//! How a server is set up. The defaults are safe: this machine only, with authentication.

use crate::access::Refusals;
use crate::dashboard::LoginCodes;
use redrive_core::access::Access;
use redrive_core::alert::AlertSettings;
use redrive_core::failure::ClassifierRules;
use redrive_core::masking::Rules;
use redrive_core::metrics::Stats;
use redrive_core::store::StoreInfo;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The largest body unless another limit is set.
const BODY_BYTES_MAX: usize = 1024 * 1024;
/// The largest batch unless another limit is set.
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The colour of an installation, by which people tell it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Colour {
    /// For what must not be broken.
    Red,
    /// For what is nearly as important.
    Amber,
    /// For trials.
    Blue,
    /// For everything else.
    Grey,
}

impl Colour {
    /// The name, which is also a class of the stylesheet.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Red => "red",
            Self::Amber => "amber",
            Self::Blue => "blue",
            Self::Grey => "grey",
        }
    }
}

/// The settings of a server.
#[derive(Clone)]
pub struct Config {
    /// The name of this installation, shown to people who have several.
    pub instance: String,
    /// Its colour. Without one it follows from the name.
    pub colour: Option<Colour>,
    /// The names under which this server is reached, beside those of this machine.
    pub hosts: Vec<String>,
    /// What is masked.
    pub masking: Rules,
    /// The rules by which failures that come in over the API are classified.
    pub known: ClassifierRules,
    /// The rules of alerts, for what is shown of them and for the report. Channels are not needed here.
    pub alerts: AlertSettings,
    /// The largest body of a request, in bytes.
    pub body_bytes_max: usize,
    /// The largest body of a request with a batch, in bytes. Streams are limited line by line instead.
    pub batch_bytes_max: usize,
    /// The number of requests a second that one token may send. `None` is no limit.
    pub rate_per_token: Option<u32>,
    /// Whoever calls may do this, without a token. Only for trials on this machine.
    pub without_auth: Option<Arc<Access>>,
    /// One-time codes with which a browser on this machine logs in.
    pub login_codes: LoginCodes,
    /// Refused requests that are not in the audit trail yet.
    pub refusals: Refusals,
    /// Whether people reach the server over TLS: by itself, or through a proxy in front of it.
    pub tls: bool,
    /// Cancelled when the server stops. Requests that wait for something then return at once.
    pub stop: CancellationToken,
    /// Renders the counters of the store and what this process measured, for `/metrics`. Without it, `/metrics` has only
    /// the requests of this server.
    pub process_metrics: Option<fn(Stats, &StoreInfo) -> String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            instance: "redrive".into(),
            colour: None,
            hosts: Vec::new(),
            masking: Rules::default(),
            known: ClassifierRules::default(),
            alerts: AlertSettings::default(),
            body_bytes_max: BODY_BYTES_MAX,
            batch_bytes_max: BATCH_BYTES_MAX,
            rate_per_token: None,
            without_auth: None,
            login_codes: LoginCodes::default(),
            refusals: Refusals::default(),
            tls: false,
            stop: CancellationToken::new(),
            process_metrics: None,
        }
    }
}
