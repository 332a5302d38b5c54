//! Controls who may connect and send: TLS and bearer tokens from files that are reread. Both transports check here and
//! nowhere else. Without files, everybody may do everything.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use hyper::header::HeaderMap;
use millpond_runtime::{Environment as _, SystemEnvironment, blocking};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::files::{FileError, Files, Look, Watched};
use crate::tls::{Tls, TlsFiles};
use crate::tokens::{Denied, Identity, Tokens};

const TOKENS: &str = "--tokens";

/// Maximum number of token names in one warning.
const NAMES_SHOWN: usize = 10;

/// Locations of the secrets. A check without a file is off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecurityFiles {
    /// If set, all connections must use TLS.
    pub tls: Option<TlsFiles>,
    /// If set, requests need a bearer token from this file (format: `design/security.md`).
    pub tokens: Option<PathBuf>,
}

/// Why a listener must not open as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} can be reached by others, who could read and change what is sent: give --tls-cert and --tls-key, or listen on \
     127.0.0.1 behind a proxy that ends TLS, or say --insecure if the network is trusted"
)]
pub struct Exposed {
    address: SocketAddr,
}

/// Checks whether telemetry may be accepted at this address: plaintext is allowed only on loopback, or with `insecure`.
///
/// # Errors
/// [`Exposed`], which lists the options.
pub fn check_exposure(address: SocketAddr, tls: bool, insecure: bool) -> Result<(), Exposed> {
    if tls || insecure || address.ip().to_canonical().is_loopback() {
        Ok(())
    } else {
        Err(Exposed { address })
    }
}

/// The certificates and tokens in force.
#[derive(Debug)]
pub struct Security {
    tls: Option<Watched<Tls>>,
    tokens: Option<Watched<Tokens>>,
    anybody: Identity,
    metrics: Metrics,
    /// The expiry time of the certificate last warned about, so that each one is reported once.
    out_of_date: Mutex<Option<SystemTime>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    files: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reload {
    files: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Token {
    token: String,
}

#[derive(Debug, Default)]
struct Metrics {
    expiry: Gauge,
    reloads: Family<Reload, Counter>,
    failing: Family<Of, Gauge>,
    denied: Family<Reason, Counter>,
    records: Family<Token, Counter>,
}

impl Security {
    /// Everybody may do everything.
    pub fn open() -> Arc<Security> {
        Arc::new(Security::of(None, None))
    }

    fn of(tls: Option<Watched<Tls>>, tokens: Option<Watched<Tokens>>) -> Security {
        Security {
            tls,
            tokens,
            anybody: Identity::anybody(),
            metrics: Metrics::default(),
            out_of_date: Mutex::default(),
        }
    }

    /// Loads the files and registers the metrics of what they configure.
    ///
    /// # Errors
    /// A file cannot be read or used. The error names its setting and the problem.
    pub fn load(files: &SecurityFiles, registry: &mut Registry) -> Result<Arc<Security>, FileError> {
        let tls = files
            .tls
            .as_ref()
            .map(|tls| Watched::load(tls.files(), Tls::parse))
            .transpose()?;
        let tokens = files
            .tokens
            .as_ref()
            .map(|path| Watched::load(Files::new(vec![(TOKENS, path.clone())]), parse_tokens))
            .transpose()?;
        let security = Security::of(tls, tokens);
        security.register(registry);
        security.measure();
        security.warn_of_time();
        Ok(Arc::new(security))
    }

    fn register(&self, registry: &mut Registry) {
        let Metrics {
            expiry,
            reloads,
            failing,
            denied,
            records,
        } = &self.metrics;
        let registry = registry.sub_registry_with_prefix("millpond_gateway");
        if self.tls.is_some() {
            registry.register_with_unit(
                "tls_certificate_expiry",
                "Expiry of the server's certificate, in Unix time",
                Unit::Seconds,
                expiry.clone(),
            );
        }
        if self.tokens.is_some() {
            registry.register(
                "requests_denied",
                "Requests without a valid token, by reason",
                denied.clone(),
            );
            registry.register(
                "token_records",
                "Records committed and acknowledged, by the token's name",
                records.clone(),
            );
            for reason in Denied::ALL.map(Denied::name) {
                drop(denied.get_or_create(&Reason { reason }));
            }
        }
        for files in self.kinds() {
            for outcome in ["success", "failure"] {
                drop(reloads.get_or_create(&Reload { files, outcome }));
            }
            drop(failing.get_or_create(&Of { files }));
        }
        if self.is_watching() {
            registry.register(
                "reloads",
                "Changed files reread while running: applied, or refused",
                reloads.clone(),
            );
            registry.register(
                "reload_failing",
                "1 while the files are unusable and their previous content is in force",
                failing.clone(),
            );
        }
    }

    fn kinds(&self) -> impl Iterator<Item = &'static str> {
        let tls = self.tls.is_some().then_some("tls");
        tls.into_iter().chain(self.tokens.is_some().then_some("tokens"))
    }

    /// Returns true if there are files to reread.
    pub fn is_watching(&self) -> bool {
        self.tls.is_some() || self.tokens.is_some()
    }

    /// A description of what clients need.
    pub fn describe(&self) -> String {
        let transport = self
            .tls
            .as_ref()
            .map_or("in clear", |tls| match tls.current().client_certificates {
                true => "TLS with client certificates",
                false => "TLS",
            });
        match &self.tokens {
            Some(tokens) => format!("{transport}, {} tokens", tokens.current().len()),
            None => transport.to_owned(),
        }
    }

    /// Rereads the files and applies them if they are usable, to new connections and requests; open connections stay.
    /// If `asked`, also logs that nothing has changed.
    pub async fn reload(self: &Arc<Self>, asked: bool) {
        let security = Arc::clone(self);
        // A panic there is a bug, which its thread reports: the next look will do.
        let _ = blocking::run(&SystemEnvironment, move || security.look(asked)).await;
    }

    fn look(&self, asked: bool) {
        if let Some(tls) = &self.tls {
            self.report("tls", tls.look(), asked);
        }
        if let Some(tokens) = &self.tokens {
            let before = tokens.current();
            self.report("tokens", tokens.look(), asked);
            self.forget(&before, &tokens.current());
        }
        self.measure();
        self.warn_of_time();
    }

    fn report(&self, files: &'static str, look: Look, asked: bool) {
        let count = |outcome| {
            self.metrics
                .reloads
                .get_or_create(&Reload { files, outcome })
                .inc();
        };
        let failing = self.metrics.failing.get_or_create_owned(&Of { files });
        match look {
            Look::Same if asked => tracing::info!("{files}: the files are unchanged"),
            Look::Same => {}
            Look::Back => {
                tracing::info!("{files}: the files match what is in force again");
                failing.set(0);
            }
            Look::New => {
                tracing::info!("{files}: read again; clients now need: {}", self.describe());
                count("success");
                failing.set(0);
            }
            Look::StillRefused if asked => {
                tracing::error!(
                    "{files}: the files are unchanged since they were refused; the previous content stays in force"
                );
            }
            Look::StillRefused => {}
            Look::Refused(error) => {
                tracing::error!("{error}; the previous content stays in force");
                count("failure");
                failing.set(1);
            }
        }
    }

    fn measure(&self) {
        if let Some(tls) = &self.tls {
            let until = tls.current().valid_until.duration_since(SystemTime::UNIX_EPOCH);
            let seconds = until.unwrap_or_default().as_secs();
            self.metrics
                .expiry
                .set(i64::try_from(seconds).unwrap_or(i64::MAX));
        }
        let Some(tokens) = &self.tokens else { return };
        for name in tokens.current().names() {
            drop(self.metrics.records.get_or_create(&token(name)));
        }
    }

    /// Removes the metrics of removed tokens: ever new names would fill the memory. Warns about removals, because a
    /// shorter file may be half-written.
    fn forget(&self, before: &Tokens, now: &Tokens) {
        let named: HashSet<&str> = now.names().collect();
        let gone: Vec<&str> = before.names().filter(|name| !named.contains(name)).collect();
        for name in &gone {
            self.metrics.records.remove(&token(name));
        }
        if now.len() < before.len() {
            let shown = gone
                .iter()
                .take(NAMES_SHOWN)
                .copied()
                .collect::<Vec<_>>()
                .join(", ");
            let more = if gone.len() > NAMES_SHOWN { ", …" } else { "" };
            tracing::warn!(
                "tokens: {} of {} tokens are no longer in force: {shown}{more}. If nobody took them away, the file is \
                 half-written: replace it by a rename, and give it a count",
                gone.len(),
                before.len()
            );
        }
    }

    fn warn_of_time(&self) {
        let Some(tls) = self.tls.as_ref().map(Watched::current) else {
            return;
        };
        let mut logged = self.out_of_date.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = tls.out_of_date(SystemEnvironment.system_time());
        let of = fault.is_some().then_some(tls.valid_until);
        if let Some(fault) = fault.filter(|_| *logged != of) {
            tracing::warn!("the certificate in --tls-cert {fault}: clients will refuse it");
        }
        *logged = of;
    }

    /// Returns true if a finished TLS handshake implies a client certificate.
    pub(crate) fn asks_for_certificates(&self) -> bool {
        self.tls().is_some_and(|tls| tls.client_certificates)
    }

    /// Returns true if clients authenticate in any way.
    pub(crate) fn identifies(&self) -> bool {
        self.tokens.is_some() || self.asks_for_certificates()
    }

    /// The TLS configuration of new connections; `None` for plaintext.
    pub(crate) fn tls(&self) -> Option<Arc<Tls>> {
        self.tls.as_ref().map(Watched::current)
    }

    /// Authorizes a request by its headers.
    pub(crate) fn authorize(&self, headers: &HeaderMap) -> Result<Identity, Denied> {
        let Some(tokens) = &self.tokens else {
            return Ok(self.anybody.clone());
        };
        let authorized = tokens.current().authorize(headers);
        authorized.inspect_err(|denied| self.denied(*denied))
    }

    /// The sender of every request if tokens are off.
    pub(crate) fn anybody(&self) -> Option<Identity> {
        self.tokens.is_none().then(|| self.anybody.clone())
    }

    /// Authorizes a sender by the name of a token and the token. Without tokens, nobody.
    pub(crate) fn authorize_named(&self, name: &[u8], token: &[u8]) -> Result<Identity, Denied> {
        let tokens = self.tokens.as_ref().ok_or(Denied::Unknown)?;
        let authorized = tokens.current().authorize_named(name, token);
        authorized.inspect_err(|denied| self.denied(*denied))
    }

    /// Counts a sender that is not authorized.
    pub(crate) fn denied(&self, denied: Denied) {
        let reason = denied.name();
        self.metrics.denied.get_or_create(&Reason { reason }).inc();
    }

    /// Counts committed records of this identity.
    pub(crate) fn committed(&self, identity: &Identity, records: u64) {
        if let Some(name) = identity.token() {
            self.metrics.records.get_or_create(&token(name)).inc_by(records);
        }
    }
}

/// Counts the tokens in the text of a tokens file (format: `design/security.md`).
///
/// # Errors
/// The first problem, by line. It never quotes the text.
pub fn count_tokens(text: &[u8]) -> Result<usize, String> {
    Tokens::parse(text).map(|tokens| tokens.len())
}

fn token(name: &str) -> Token {
    Token {
        token: name.to_owned(),
    }
}

fn parse_tokens(files: &Files, contents: &[Vec<u8>]) -> Result<Tokens, FileError> {
    Tokens::parse(&contents[0]).map_err(|mistake| files.fault(0, mistake))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reachable_address_needs_tls_or_an_explicit_flag() {
        let check = |address: &str, tls, insecure| check_exposure(address.parse().unwrap(), tls, insecure);
        for loopback in [
            "127.0.0.1:4317",
            "127.8.9.1:0",
            "[::1]:4317",
            "[::ffff:127.0.0.1]:4317",
        ] {
            assert_eq!(check(loopback, false, false), Ok(()), "{loopback}");
        }
        for open in [
            "0.0.0.0:4317",
            "[::]:4317",
            "10.0.0.7:4317",
            "[::ffff:10.0.0.7]:1",
            "[fe80::1]:1",
        ] {
            let error = check(open, false, false).unwrap_err().to_string();
            for way_out in [open, "--tls-cert", "127.0.0.1", "--insecure"] {
                assert!(error.contains(way_out), "{error}");
            }
            assert_eq!(
                (check(open, true, false), check(open, false, true)),
                (Ok(()), Ok(()))
            );
        }
    }
}
