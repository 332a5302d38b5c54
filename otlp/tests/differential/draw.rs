//! Draws requests from bytes: fields in any order, repeated, missing, unknown.

/// Draws choices from bytes (and zeros after their end), so that proptest can shrink what it builds.
pub(crate) struct Draw<'a>(pub(crate) std::slice::Iter<'a, u8>);

impl Draw<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    pub(crate) fn below(&mut self, limit: u8) -> u8 {
        self.byte() % limit
    }

    pub(crate) fn u64(&mut self) -> u64 {
        match self.below(4) {
            0 => 0,
            1 => u64::MAX - u64::from(self.byte()),
            2 => u64::from(self.byte()) << 40,
            _ => u64::from(self.byte()),
        }
    }

    pub(crate) fn text(&mut self) -> Vec<u8> {
        let text = ["", "a", "service.name", "naïve", "\u{2028}<&>\"", "{\"k\":[1]}"];
        let mut text = text[usize::from(self.below(6))].as_bytes().to_vec();
        if self.below(16) == 15 {
            text = vec![b'x'; 200];
        }
        text
    }
}

pub(crate) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

pub(crate) fn put_varint(number: u64, value: u64, out: &mut Vec<u8>) {
    varint(number << 3, out);
    varint(value, out);
}

pub(crate) fn put_fixed64(number: u64, value: u64, out: &mut Vec<u8>) {
    varint(number << 3 | 1, out);
    out.extend(value.to_le_bytes());
}

pub(crate) fn put_fixed32(number: u64, value: u64, out: &mut Vec<u8>) {
    varint(number << 3 | 5, out);
    out.extend(&value.to_le_bytes()[..4]);
}

pub(crate) fn put_bytes(number: u64, value: &[u8], out: &mut Vec<u8>) {
    varint(number << 3 | 2, out);
    varint(value.len() as u64, out);
    out.extend(value);
}

pub(crate) fn unknown(draw: &mut Draw, out: &mut Vec<u8>) {
    let number = [20, 99, 1001, (1 << 29) - 1][usize::from(draw.below(4))];
    match draw.below(4) {
        0 => put_varint(number, draw.u64(), out),
        1 => put_fixed64(number, draw.u64(), out),
        2 => put_fixed32(number, draw.u64(), out),
        _ => put_bytes(number, &draw.text(), out),
    }
}

fn scalar(draw: &mut Draw, out: &mut Vec<u8>) {
    match draw.below(7) {
        0 => {}
        1 => put_bytes(1, &draw.text(), out),
        2 => put_varint(2, draw.u64(), out),
        3 => put_varint(3, draw.u64(), out),
        4 => put_fixed64(
            4,
            [0, 1, 0x3ff0 << 48, 0x7ff0 << 48][usize::from(draw.below(4))],
            out,
        ),
        5 => put_bytes(7, &draw.text(), out),
        _ => put_varint(8, draw.u64(), out),
    }
}

/// One occurrence of an AnyValue. Only the first occurrence of a field may be an array or a map: for a second one we
/// follow the Collector and not protobuf (see `faults`).
pub(crate) fn any_value(draw: &mut Draw, first: bool, depth: u8) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(3) {
        scalar(draw, &mut out);
    }
    let mut inner = Vec::new();
    match draw.below(6) {
        0 if first && depth < 4 => {
            for _ in 0..draw.below(4) {
                put_bytes(1, &any_value(draw, true, depth + 1), &mut inner);
            }
            put_bytes(5, &inner, &mut out);
        }
        1 if first && depth < 4 => {
            for _ in 0..draw.below(4) {
                put_bytes(1, &key_value(draw, depth + 1), &mut inner);
            }
            put_bytes(6, &inner, &mut out);
        }
        2 => unknown(draw, &mut out),
        _ => scalar(draw, &mut out),
    }
    out
}

pub(crate) fn key_value(draw: &mut Draw, depth: u8) -> Vec<u8> {
    let mut out = Vec::new();
    let mut first = true;
    for _ in 0..draw.below(4) {
        match draw.below(6) {
            0 | 1 => put_bytes(1, &draw.text(), &mut out),
            2 | 3 => {
                put_bytes(2, &any_value(draw, first, depth), &mut out);
                first = false;
            }
            4 => put_varint(3, draw.u64(), &mut out),
            _ => unknown(draw, &mut out),
        }
    }
    out
}

fn scope(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(5) {
        match draw.below(5) {
            0 => put_bytes(1, &draw.text(), &mut out),
            1 => put_bytes(2, &draw.text(), &mut out),
            2 => put_bytes(3, &key_value(draw, 0), &mut out),
            3 => put_varint(4, draw.u64(), &mut out),
            _ => unknown(draw, &mut out),
        }
    }
    out
}

fn resource(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(5) {
        match draw.below(5) {
            0 | 1 => put_bytes(1, &key_value(draw, 0), &mut out),
            2 => put_varint(2, draw.u64(), &mut out),
            3 => {
                let mut entity = Vec::new();
                put_bytes(1 + u64::from(draw.below(4)), &draw.text(), &mut entity);
                put_bytes(3, &entity, &mut out);
            }
            _ => unknown(draw, &mut out),
        }
    }
    out
}

/// A request of this signal's items.
pub(crate) fn request(draw: &mut Draw, item: fn(&mut Draw) -> Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(3) + 1 {
        let mut group = Vec::new();
        for _ in 0..draw.below(6) {
            match draw.below(6) {
                0 => put_bytes(1, &resource(draw), &mut group),
                1 => put_bytes(3, &draw.text(), &mut group),
                2 => unknown(draw, &mut group),
                _ => put_bytes(2, &scoped(draw, item), &mut group),
            }
        }
        put_bytes(1, &group, &mut out);
        if draw.below(8) == 7 {
            unknown(draw, &mut out);
        }
    }
    out
}

fn scoped(draw: &mut Draw, item: fn(&mut Draw) -> Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(6) {
        match draw.below(6) {
            0 => put_bytes(1, &scope(draw), &mut out),
            1 => put_bytes(3, &draw.text(), &mut out),
            2 => unknown(draw, &mut out),
            _ => put_bytes(2, &item(draw), &mut out),
        }
    }
    out
}
