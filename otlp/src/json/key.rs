//! Maps a key of an object to a field.

use super::reader::Text;
use crate::schema::{Field, Message};

/// Longer than every key in OTLP.
const KEY_MAX: usize = 64;

/// The number and definition of the field with this key: its name in lowerCamelCase or its original name. `None` if
/// OTLP does not define the key there.
pub(super) fn field(message: &'static Message, key: Text) -> Option<(u32, &'static Field)> {
    if !key.escaped {
        return find(message, key.raw);
    }
    let mut buffer = [0; KEY_MAX];
    let mut length = 0;
    key.unescape(|piece| {
        let room = buffer.get_mut(length..length + piece.len()).ok_or(())?;
        room.copy_from_slice(piece);
        length += piece.len();
        Ok::<_, ()>(())
    })
    .ok()?;
    find(message, &buffer[..length])
}

fn find(message: &'static Message, key: &[u8]) -> Option<(u32, &'static Field)> {
    let dense = (0..).zip(message.fields);
    let sparse = message.sparse.iter().map(|(number, field)| (*number, field));
    dense
        .chain(sparse)
        .find(|(_, field)| !field.name.is_empty() && names(field.name, key))
}

fn names(name: &str, key: &[u8]) -> bool {
    camel(name).eq(key.iter().copied()) || name.as_bytes() == key
}

/// A field's name in lowerCamelCase.
pub(super) fn camel(name: &str) -> impl Iterator<Item = u8> {
    let mut after_underscore = false;
    name.bytes().filter_map(move |byte| {
        let upper = std::mem::replace(&mut after_underscore, byte == b'_');
        match byte {
            b'_' => None,
            _ if upper => Some(byte.to_ascii_uppercase()),
            _ => Some(byte),
        }
    })
}
