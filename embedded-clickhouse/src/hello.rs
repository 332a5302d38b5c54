//! clickhouse-go's greeting over HTTP. It asks for blocks in the native protocol's form (with block info) and, in
//! the same form, who the server is; the revision in the answer decides the form of all later blocks.
//! The answer is made here, with revision 0: from then on the client reads plain Native, which is what chDB writes.

use crate::request::Request;

/// The first query of a connection, to the letter (clickhouse-go 2.4x, `queryHello`).
const QUERY: &str = "SELECT displayName(), version(), revision(), timezone()";

/// From this revision on a column says whether its serialization is a custom one.
const REVISION_WITH_CUSTOM_SERIALIZATION: u32 = 54454;

/// What the answer says.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// `displayName()`: the host's name.
    pub(crate) name: String,
    /// `version()`: ClickHouse's version.
    pub(crate) version: String,
    /// `timezone()`.
    pub(crate) timezone: String,
}

/// The answer when `request`, with its SQL `sql`, is that greeting.
pub(crate) fn answer(request: &Request, sql: &[u8], server: &Server) -> Option<Vec<u8>> {
    let native = request.default_format.as_deref() == Some("Native");
    if request.client_protocol_version == 0 || !native || sql.trim_ascii() != QUERY.as_bytes() {
        return None;
    }
    let custom = request.client_protocol_version >= REVISION_WITH_CUSTOM_SERIALIZATION;
    // Block info: field 1 is_overflows = 0, field 2 bucket = -1, end. Then 4 columns, 1 row.
    let mut block = vec![1, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 4, 1];
    let mut column = |name: &str, kind: &str, value: &[u8]| {
        string(&mut block, name);
        string(&mut block, kind);
        if custom {
            block.push(0);
        }
        block.extend_from_slice(value);
    };
    column("displayName()", "String", &value(&server.name));
    column("version()", "String", &value(&server.version));
    column("revision()", "UInt32", &0_u32.to_le_bytes());
    column("timezone()", "String", &value(&server.timezone));
    Some(block)
}

fn value(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    string(&mut out, text);
    out
}

/// A string with its length before it, as a varint.
fn string(out: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    while length >= 0x80 {
        out.push(length.to_le_bytes()[0] | 0x80);
        length >>= 7;
    }
    out.push(length.to_le_bytes()[0]);
    out.extend_from_slice(text.as_bytes());
}
