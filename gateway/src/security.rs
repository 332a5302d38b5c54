//! Who may connect and who may send: TLS and bearer tokens, out of files that are read again. Both transports ask here and
//! nowhere else; without files everybody may do everything.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use hyper::header::HeaderMap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::task::spawn_blocking;

use crate::files::{FileError, Files, Look, Watched};
use crate::tls::{Tls, TlsFiles};
use crate::tokens::{Denied, Identity, Tokens};

const TOKENS: &str = "--tokens";

/// Names of tokens in one warning.
const NAMES_SHOWN: usize = 10;

/// Where the secrets are. Nothing is asked for that has no file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecurityFiles {
    /// With them, connections are TLS and nothing else.
    pub tls: Option<TlsFiles>,
    /// With it, requests need a bearer token that is in it (`design/security.md` has its form).
    pub tokens: Option<PathBuf>,
}

/// Why a listener must not be opened as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} can be reached by others, who could read and change what is sent: give --tls-cert and --tls-key, or listen on \
     127.0.0.1 behind a proxy that ends TLS, or say --insecure if the network is trusted"
)]
pub struct Exposed {
    address: SocketAddr,
}

/// Whether telemetry may be accepted at this address: in clear on this machine alone, or where it is insisted on.
///
/// # Errors
/// [`Exposed`], which says the ways out.
pub fn check_exposure(address: SocketAddr, tls: bool, insecure: bool) -> Result<(), Exposed> {
    if tls || insecure || address.ip().to_canonical().is_loopback() {
        Ok(())
    } else {
        Err(Exposed { address })
    }
}

/// What is in force.
#[derive(Debug)]
pub struct Security {
    tls: Option<Watched<Tls>>,
    tokens: Option<Watched<Tokens>>,
    anybody: Identity,
    metrics: Metrics,
    /// The certificate whose time was found fault with, by when it ends: that is said once.
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

    /// What the files say now. Its metrics are registered, of what there is.
    ///
    /// # Errors
    /// When a file cannot be read or used: which, by its setting, and what is wrong with it.
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
                "When the server's certificate ends, in Unix time",
                Unit::Seconds,
                expiry.clone(),
            );
        }
        if self.tokens.is_some() {
            registry.register(
                "requests_denied",
                "Requests without a valid token, by what was wrong",
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
                "Changed files that were read again while running: taken over, or refused",
                reloads.clone(),
            );
            registry.register(
                "reload_failing",
                "1 while the files cannot be used, and what they said before is in force",
                failing.clone(),
            );
        }
    }

    fn kinds(&self) -> impl Iterator<Item = &'static str> {
        let tls = self.tls.is_some().then_some("tls");
        tls.into_iter().chain(self.tokens.is_some().then_some("tokens"))
    }

    /// Whether there are files to be read again.
    pub fn is_watching(&self) -> bool {
        self.tls.is_some() || self.tokens.is_some()
    }

    /// What is asked of clients, in words.
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

    /// Reads the files again, and takes over what they say if that can be used. New connections and requests are held to
    /// it; connections that are open stay. When it was asked for, it is also said that nothing has changed.
    pub async fn reload(self: &Arc<Self>, asked: bool) {
        let security = Arc::clone(self);
        // A panic in there is a bug, and is reported by its thread: the next look is as good.
        let _ = spawn_blocking(move || security.look(asked)).await;
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
            Look::Same if asked => tracing::info!("{files}: the files are as they were"),
            Look::Same => {}
            Look::Back => {
                tracing::info!("{files}: the files are again what is in force");
                failing.set(0);
            }
            Look::New => {
                tracing::info!("{files}: read again; clients now need: {}", self.describe());
                count("success");
                failing.set(0);
            }
            Look::StillRefused if asked => {
                tracing::error!(
                    "{files}: the files are as they were when they were refused; what was in force stays so"
                );
            }
            Look::StillRefused => {}
            Look::Refused(error) => {
                tracing::error!("{error}; what was in force stays so");
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

    /// Takes the metrics of tokens that are gone away: names of ever new tokens would fill the memory. A file that has become
    /// shorter may be half of one, which is worth a warning.
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
        let mut said = self.out_of_date.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = tls.out_of_date(SystemTime::now());
        let of = fault.is_some().then_some(tls.valid_until);
        if let Some(fault) = fault.filter(|_| *said != of) {
            tracing::warn!("the certificate in --tls-cert {fault}: clients will refuse it");
        }
        *said = of;
    }

    /// Whether a client that has finished TLS's handshake has shown a certificate.
    pub(crate) fn asks_for_certificates(&self) -> bool {
        self.tls().is_some_and(|tls| tls.client_certificates)
    }

    /// Whether clients authenticate in some way.
    pub(crate) fn identifies(&self) -> bool {
        self.tokens.is_some() || self.asks_for_certificates()
    }

    /// The TLS that new connections are served with; none when they are in clear.
    pub(crate) fn tls(&self) -> Option<Arc<Tls>> {
        self.tls.as_ref().map(Watched::current)
    }

    /// Whose request this is, by its headers.
    pub(crate) fn authorize(&self, headers: &HeaderMap) -> Result<Identity, Denied> {
        let Some(tokens) = &self.tokens else {
            return Ok(self.anybody.clone());
        };
        tokens.current().authorize(headers).inspect_err(|denied| {
            let reason = denied.name();
            self.metrics.denied.get_or_create(&Reason { reason }).inc();
        })
    }

    /// These records of its are committed.
    pub(crate) fn committed(&self, identity: &Identity, records: u64) {
        if let Some(name) = identity.token() {
            self.metrics.records.get_or_create(&token(name)).inc_by(records);
        }
    }
}

/// How many tokens are in the text of a tokens file (`design/security.md` has its form).
///
/// # Errors
/// The first thing that is wrong with it, by its line. Never a piece of the text.
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
    fn what_others_can_reach_needs_tls_or_a_word() {
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
