//! The key and the certificate of one process. They live in memory and end with it.

use millpond_manifest::Fingerprint;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use crate::NAME;

/// The key or the certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a certificate for other producers: {0}")]
pub struct IdentityError(#[from] rcgen::Error);

/// The key and the certificate of one process.
#[derive(Debug)]
pub struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Makes a key and a certificate that it signs itself.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new() -> Result<Identity, IdentityError> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([NAME.to_owned()])?;
        Ok(Identity {
            certificate: cert.der().clone(),
            key: PrivateKeyDer::Pkcs8(signing_key.serialize_der().into()),
        })
    }

    /// What the manifest has of the certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.certificate)
    }
}

/// The SHA-256 of a certificate.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    Fingerprint(Sha256::digest(certificate.as_ref()).into())
}
