//! The settings for TLS and tokens, and for unencrypted addresses.

use crate::units::Time;
use anyhow::{Context, bail};
use millpond_gateway::{Security, SecurityFiles, TlsFiles, check_exposure};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// The flags for TLS and tokens.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SecurityArgs {
    /// The server's certificate and its intermediate CAs, in PEM. With it, the gateway accepts OTLP only over TLS.
    #[arg(long, env = "MILLPOND_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The certificate's key, in PEM, without a passphrase.
    #[arg(long, env = "MILLPOND_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// CAs of client certificates, in PEM. With it, a client must present a certificate of one of them (mTLS).
    #[arg(long, env = "MILLPOND_TLS_CLIENT_CA", value_name = "FILE")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// Bearer tokens, one of which a request must carry. A TOML file of [[token]] tables with `name`; the `token` itself or its
    /// `sha256`; and `prefix`, to give its records separate streams. A token's `sha256`, in one line:
    ///
    /// printf %s "$TOKEN" | sha256sum | cut -d ' ' -f 1
    #[arg(long, env = "MILLPOND_TOKENS", value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,

    /// Interval between two checks of these files for changes. 0s checks only on SIGHUP. The gateway rejects an unusable file,
    /// and the previous one stays in force.
    #[arg(
        long,
        env = "MILLPOND_RELOAD_INTERVAL",
        value_name = "TIME",
        default_value = "10s"
    )]
    pub(crate) reload_interval: Time,

    /// Accept unencrypted OTLP from other machines. Default: off, since others could read and change records and tokens in transit.
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

    /// Refuses an unencrypted address that other machines can reach, without --insecure.
    pub(crate) fn check(&self, listen: SocketAddr) -> anyhow::Result<()> {
        Ok(check_exposure(
            listen,
            self.files()?.tls.is_some(),
            self.insecure,
        )?)
    }

    /// Loads the files.
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
