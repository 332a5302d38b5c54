//! The load generator's TLS and bearer token. It never prints the token.

use std::fmt;
use std::path::{Path, PathBuf};

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::LoadError;

/// The default is plaintext without a token.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The server's CA in PEM. Enables TLS.
    pub ca: Option<PathBuf>,
    /// The client certificate and its key in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A bearer token.
    pub token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("ca", &self.ca)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// The TLS configuration; `None` for plaintext.
    pub(crate) fn tls(&self) -> Result<Option<ClientTlsConfig>, LoadError> {
        let Some(ca) = self.ca_pem()? else { return Ok(None) };
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
        if let Some([certificate, key]) = self.identity_pem()? {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        Ok(Some(tls))
    }

    /// The server's CA.
    pub(crate) fn ca_pem(&self) -> Result<Option<Vec<u8>>, LoadError> {
        self.ca.as_deref().map(|ca| read("tls-ca", ca)).transpose()
    }

    /// The client certificate and its key.
    pub(crate) fn identity_pem(&self) -> Result<Option<[Vec<u8>; 2]>, LoadError> {
        let Some((certificate, key)) = &self.identity else {
            return Ok(None);
        };
        Ok(Some([read("tls-cert", certificate)?, read("tls-key", key)?]))
    }

    /// The value of the header `authorization`.
    pub(crate) fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, LoadError> {
        let Some(token) = &self.token else { return Ok(None) };
        let mut value: MetadataValue<Ascii> =
            format!("Bearer {token}")
                .parse()
                .map_err(|_| LoadError::Setting {
                    setting: "token",
                    reason: "it has characters that no header can have".to_owned(),
                })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<u8>, LoadError> {
    std::fs::read(path).map_err(|error| LoadError::Setting {
        setting,
        reason: format!("cannot read {}: {error}", path.display()),
    })
}
