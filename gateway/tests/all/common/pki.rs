//! Certificates for tests: CAs, and what they sign.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// A CA for one test.
pub struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, both in PEM.
pub struct Leaf {
    pub certificate: String,
    pub key: String,
}

/// Expiry of valid certificates: 2100-01-01, in Unix time.
pub const UNTIL: u64 = 4_102_444_800;

impl Ca {
    pub fn new(name: &str) -> Ca {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        Ca { issuer }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// For a server at 127.0.0.1.
    pub fn server(&self) -> Leaf {
        self.leaf(ExtendedKeyUsagePurpose::ServerAuth, 2100)
    }

    pub fn client(&self) -> Leaf {
        self.leaf(ExtendedKeyUsagePurpose::ClientAuth, 2100)
    }

    pub fn expired(&self, purpose: ExtendedKeyUsagePurpose) -> Leaf {
        self.leaf(purpose, 2001)
    }

    fn leaf(&self, purpose: ExtendedKeyUsagePurpose, until: i32) -> Leaf {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        params.extended_key_usages = vec![purpose];
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Leaf {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}
