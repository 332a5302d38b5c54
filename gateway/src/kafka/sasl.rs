//! SASL/PLAIN (RFC 4616): the name and the token of an entry in the tokens file.

use crate::security::Security;
use crate::tokens::{Denied, Identity};

/// The only mechanism.
pub(super) const PLAIN: &str = "PLAIN";

/// Authenticates a client by the message of PLAIN: an identity to act as, a name and a password, with zeros between
/// them. The identity to act as is empty or the name.
pub(super) fn authenticate(security: &Security, message: &[u8]) -> Result<Identity, String> {
    if security.anybody().is_some() {
        return Err("the gateway has no --tokens: use security.protocol PLAINTEXT or SSL".to_owned());
    }
    let parts: Vec<&[u8]> = message.split(|byte| *byte == 0).collect();
    let [acts_as, name, password] = parts[..] else {
        security.denied(Denied::Malformed);
        return Err("the message of SASL/PLAIN is malformed".to_owned());
    };
    if !acts_as.is_empty() && acts_as != name {
        security.denied(Denied::Malformed);
        return Err("acting as somebody else is not offered".to_owned());
    }
    security.authorize_named(name, password).map_err(|_| {
        "wrong name or password: the name is that of a [[token]] in the gateway's tokens file, the password its token"
            .to_owned()
    })
}
