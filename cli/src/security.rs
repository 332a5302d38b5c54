//! The settings that say who may reach the gateway: TLS, tokens, and where it may listen without.

use crate::units::Time;
use anyhow::{Context, bail};
use millpond_gateway::{Security, SecurityFiles, TlsFiles, check_exposure};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Who may reach the gateway.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SecurityArgs {
    /// The server's certificate and those between it and its CA, in PEM. With it, OTLP is accepted over TLS alone.
    #[arg(long, env = "MILLPOND_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The certificate's key, in PEM, without a passphrase.
    #[arg(long, env = "MILLPOND_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// The CAs of clients, in PEM. With it, a client must show a certificate of one of them (mTLS).
    #[arg(long, env = "MILLPOND_TLS_CLIENT_CA", value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// The bearer tokens, one of which a request must have. A TOML file of [[token]] tables with `name`; `sha256`, as
    /// `printf %s "$TOKEN" | sha256sum` gives it, or `token` itself; and, if its records go to streams of their own, `prefix`.
    #[arg(long, env = "MILLPOND_TOKENS", value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,

    /// How often the files above are looked at for a change. SIGHUP does so at once. 10s: soon enough for a token that
    /// was taken away; 0s: on SIGHUP alone. An unusable file is rejected, and the previous one stays in force.
    #[arg(
        long,
        env = "MILLPOND_RELOAD_INTERVAL",
        value_name = "TIME",
        default_value = "10s"
    )]
    pub(crate) reload_interval: Time,

    /// Accept OTLP in clear from other machines too. Off: what is sent, tokens included, could be read and changed on the way.
    #[arg(long, env = "MILLPOND_INSECURE")]
    pub(crate) insecure: bool,
}

impl SecurityArgs {
    fn files(&self) -> anyhow::Result<SecurityFiles> {
        let tls = match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (Some(certificate), Some(key), client_ca) => Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: client_ca.clone(),
            }),
            (None, None, None) => None,
            (Some(_), None, _) => bail!("--tls-cert needs --tls-key: the certificate's key"),
            (None, Some(_), _) => bail!("--tls-key needs --tls-cert: the key's certificate"),
            (None, None, Some(_)) => {
                bail!("--tls-client-ca needs --tls-cert and --tls-key: client certificates are part of TLS")
            }
        };
        Ok(SecurityFiles {
            tls,
            tokens: self.tokens.clone(),
        })
    }

    /// Refuses what was not meant: an address that others can reach, in clear.
    pub(crate) fn check(&self, listen: SocketAddr) -> anyhow::Result<()> {
        Ok(check_exposure(
            listen,
            self.files()?.tls.is_some(),
            self.insecure,
        )?)
    }

    /// What is asked of clients, out of the files.
    pub(crate) fn load(
        &self,
        registry: &mut prometheus_client::registry::Registry,
    ) -> anyhow::Result<Arc<Security>> {
        Ok(Security::load(&self.files()?, registry)?)
    }

    /// Reads the files again when they change, until `shutdown`. Without files SIGHUP ends the program, as usual.
    pub(crate) fn watch(&self, security: Arc<Security>, shutdown: CancellationToken) -> anyhow::Result<()> {
        if !security.is_watching() {
            return Ok(());
        }
        let mut hangup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
        let interval = self.reload_interval.0;
        tokio::spawn(async move {
            loop {
                let asked = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    _ = hangup.recv() => true,
                    () = tokio::time::sleep(interval), if !interval.is_zero() => false,
                };
                if asked {
                    info!("SIGHUP: reading certificates and tokens again");
                }
                security.reload(asked).await;
            }
        });
        Ok(())
    }
}
