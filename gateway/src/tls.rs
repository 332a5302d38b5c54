//! Parses certificate, key and client CA from PEM into rustls's configuration. It never reads a file, and no error
//! contains any part of a key.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::files::{FileError, Files};

/// Paths of TLS's certificate, key and CA, all in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by intermediate CAs.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The CAs of clients. If set, a client must present a certificate from one of them (mTLS).
    pub client_ca: Option<PathBuf>,
}

pub(crate) const CERTIFICATE: &str = "--tls-cert";
pub(crate) const KEY: &str = "--tls-key";
pub(crate) const CLIENT_CA: &str = "--tls-client-ca";

impl TlsFiles {
    pub(crate) fn files(&self) -> Files {
        let mut files = vec![(CERTIFICATE, self.certificate.clone()), (KEY, self.key.clone())];
        files.extend(self.client_ca.clone().map(|path| (CLIENT_CA, path)));
        Files::new(files)
    }
}

/// The TLS configuration of new connections.
#[derive(Debug)]
pub(crate) struct Tls {
    /// Without ALPN: each port sets its protocols.
    config: ServerConfig,
    /// True if clients must present a certificate.
    pub(crate) client_certificates: bool,
    pub(crate) valid_from: SystemTime,
    pub(crate) valid_until: SystemTime,
}

impl Tls {
    /// `contents` are those of [`TlsFiles::files`].
    pub(crate) fn parse(files: &Files, contents: &[Vec<u8>]) -> Result<Tls, FileError> {
        let fault = |place: usize, reason: String| files.fault(place, reason);
        let chain = certificates(&contents[0]).map_err(|reason| fault(0, reason))?;
        let (valid_from, valid_until) = validity(&chain[0]).map_err(|reason| fault(0, reason))?;
        let key = PrivateKeyDer::from_pem_slice(&contents[1]).map_err(|_| {
            let wanted =
                "a section BEGIN PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY, without a passphrase";
            fault(
                1,
                format!("it contains no readable private key: it must have {wanted}"),
            )
        })?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| fault(0, error.to_string()))?;
        let builder = match contents.get(2) {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(pem).map_err(|reason| fault(2, reason))? {
                    roots
                        .add(certificate)
                        .map_err(|error| fault(2, error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| fault(2, error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => fault(
                    1,
                    format!(
                        "it is not the key of the certificate in {CERTIFICATE} {}",
                        files.path(0)
                    ),
                ),
                error => fault(1, error.to_string()),
            })?;
        // Connections live long, so resumption saves nothing. A session would outlive the CA that let it in, and takes
        // memory.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Tls {
            config,
            client_certificates: contents.len() > 2,
            valid_from,
            valid_until,
        })
    }

    /// The configuration of a port that speaks these protocols, by ALPN name.
    pub(crate) fn config(&self, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        let mut config = self.config.clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }

    /// Why the certificate is expired or not yet valid; usually `None`.
    pub(crate) fn out_of_date(&self, now: SystemTime) -> Option<String> {
        let seconds =
            |late: SystemTime, early: SystemTime| late.duration_since(early).unwrap_or_default().as_secs();
        if now > self.valid_until {
            Some(format!("expired {} s ago", seconds(now, self.valid_until)))
        } else if now < self.valid_from {
            Some(format!(
                "is not valid for another {} s",
                seconds(self.valid_from, now)
            ))
        } else {
            None
        }
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("it is not PEM: {error}"))?;
    if chain.is_empty() {
        return Err("it contains no certificate: it must have a section BEGIN CERTIFICATE".to_owned());
    }
    Ok(chain)
}

fn validity(certificate: &CertificateDer<'_>) -> Result<(SystemTime, SystemTime), String> {
    let certificate = Certificate::from_der(certificate)
        .map_err(|error| format!("its first certificate cannot be read: {error}"))?;
    let validity = certificate.tbs_certificate().validity();
    let time = |since_epoch: Duration| SystemTime::UNIX_EPOCH + since_epoch;
    Ok((
        time(validity.not_before.to_unix_duration()),
        time(validity.not_after.to_unix_duration()),
    ))
}
