//! Walks a request's JSON: tracks the open message, maps its keys to fields and writes their values as protobuf.

use super::fault::{Fault, JsonError, JsonReason, MalformedJson};
use super::reader::Reader;
use super::writer::Writer;
use super::{id, key, number};
use crate::schema::{Bytes, Enum, Field, Fixed64, Kind, Message, Varint};
use crate::validate::DEPTH_MAX;
use crate::wire::{FIXED32, FIXED64, VARINT};

/// See [`super::protobuf_of_json`].
pub(super) fn protobuf(message: &'static Message, json: &[u8], room: usize) -> Result<Vec<u8>, JsonError> {
    let mut walk = Walk {
        reader: Reader::new(json),
        writer: Writer::new(room),
        fault_path: Vec::new(),
    };
    let walked = walk.message(message, 0).and_then(|()| walk.reader.end());
    match walked {
        Ok(()) => Ok(walk.writer.finish()),
        Err(Fault::MoreRoom) => Err(JsonError::MoreRoom),
        Err(Fault::Malformed { offset, reason }) => Err(JsonError::Malformed(MalformedJson {
            offset,
            field: path(&walk.fault_path),
            reason,
        })),
    }
}

struct Walk<'a> {
    reader: Reader<'a>,
    writer: Writer,
    /// The path to a fault, innermost field first. Empty if there is none.
    fault_path: Vec<Step>,
}

/// A field, or an element of it.
#[derive(Clone, Copy)]
struct Step {
    field: &'static Field,
    element: Option<usize>,
}

impl Walk<'_> {
    /// An object that is a message.
    fn message(&mut self, message: &'static Message, depth: u32) -> Result<(), Fault> {
        self.reader.expect(b'{', "an object")?;
        if depth > DEPTH_MAX {
            return Err(Fault::at(self.reader.at(), JsonReason::Depth));
        }
        let mut more = !self.reader.take(b'}')?;
        while more {
            let key = self.reader.string()?;
            self.reader.expect(b':', "a colon")?;
            match key::field(message, key) {
                // Null is the default value (proto3's JSON).
                _ if self.reader.null()? => {}
                None => self.reader.skip()?,
                Some((number, field)) => self.field(number, field, depth)?,
            }
            more = self.reader.another(b'}')?;
        }
        Ok(())
    }

    fn field(&mut self, number: u32, field: &'static Field, depth: u32) -> Result<(), Fault> {
        if !field.repeated {
            let written = self.value(number, field.kind, depth);
            return self.on_the_way(written, field, None);
        }
        let began = self.reader.expect(b'[', "an array");
        self.on_the_way(began, field, None)?;
        if self.reader.take(b']')? {
            return Ok(());
        }
        let packed = match field.kind {
            Kind::Fixed64s(_) | Kind::Varints(_) => Some(self.writer.open(number)?),
            _ => None,
        };
        let mut element = 0;
        loop {
            let written = self.element(number, field.kind, depth);
            self.on_the_way(written, field, Some(element))?;
            element += 1;
            let another = self.reader.another(b']');
            if !self.on_the_way(another, field, Some(element))? {
                break;
            }
        }
        packed.map_or(Ok(()), |packed| self.writer.close(packed))
    }

    fn element(&mut self, number: u32, kind: Kind, depth: u32) -> Result<(), Fault> {
        match kind {
            Kind::Fixed64s(of) => self.fixed64(of),
            Kind::Varints(of) => self.varint(of),
            // Like the Collector, read null in a list as an empty message. Lists of other kinds may not contain null.
            _ if kind.message().is_some() && self.reader.null()? => {
                let open = self.writer.open(number)?;
                self.writer.close(open)
            }
            _ => self.value(number, kind, depth),
        }
    }

    /// Writes a value with its tag.
    fn value(&mut self, number: u32, kind: Kind, depth: u32) -> Result<(), Fault> {
        if let Some(inner) = kind.message() {
            let open = self.writer.open(number)?;
            self.message(inner, depth + 1)?;
            return self.writer.close(open);
        }
        match kind {
            Kind::Varint(of) => {
                self.writer.tag(number, VARINT)?;
                self.varint(of)
            }
            Kind::Fixed64(of) => {
                self.writer.tag(number, FIXED64)?;
                self.fixed64(of)
            }
            Kind::Fixed32 => {
                self.writer.tag(number, FIXED32)?;
                let value = self.integer(0, u32::MAX.into(), "uint32")?;
                self.writer.put(&value.to_le_bytes()[..4])
            }
            Kind::Bytes(of) => self.bytes(number, of),
            // Messages are written above and lists by element; unknown fields have no name.
            _ => self.reader.skip(),
        }
    }

    fn bytes(&mut self, number: u32, of: Bytes) -> Result<(), Fault> {
        self.reader.peek()?;
        let offset = self.reader.at();
        let text = self.reader.string()?;
        let open = self.writer.open(number)?;
        if text.escaped {
            text.unescape(|piece| self.writer.put(piece))?;
        } else {
            self.writer.put(text.raw)?;
        }
        let (decoded, reason) = match of {
            Bytes::String => return self.writer.close(open),
            Bytes::Raw => (id::decode_base64(self.writer.content(open)), JsonReason::Base64),
            Bytes::Id => (id::decode_hex(self.writer.content(open)), JsonReason::Id),
        };
        let length = decoded.ok_or(Fault::at(offset, reason))?;
        self.writer.truncate(open, length);
        self.writer.close(open)
    }

    fn varint(&mut self, of: Varint) -> Result<(), Fault> {
        let value = match of {
            Varint::Bool => u64::from(self.reader.boolean()?),
            Varint::Int32 => self.integer(i32::MIN.into(), i32::MAX.into(), "int32")?,
            Varint::Int64 => self.integer(i64::MIN.into(), i64::MAX.into(), "int64")?,
            Varint::Uint32 => self.integer(0, u32::MAX.into(), "uint32")?,
            Varint::Uint64 => self.integer(0, u64::MAX.into(), "uint64")?,
            Varint::Sint32 => {
                let value = self
                    .integer(i32::MIN.into(), i32::MAX.into(), "int32")?
                    .cast_signed();
                (value << 1 ^ value >> 63).cast_unsigned()
            }
            Varint::Enum(of) => self.enumeration(of)?,
        };
        self.writer.varint(value)
    }

    fn fixed64(&mut self, of: Fixed64) -> Result<(), Fault> {
        let value = match of {
            Fixed64::Signed => self.integer(i64::MIN.into(), i64::MAX.into(), "int64")?,
            Fixed64::Unsigned => self.integer(0, u64::MAX.into(), "uint64")?,
            Fixed64::Double => self.double()?.to_bits(),
        };
        self.writer.put(&value.to_le_bytes())
    }

    /// Reads an integer from a number or a string, as 64-bit two's complement.
    fn integer(&mut self, min: i128, max: i128, range: &'static str) -> Result<u64, Fault> {
        let (offset, text) = self.number_or_string("an integer, as a number or a string")?;
        let value = number::integer(text).ok_or(Fault::at(
            offset,
            JsonReason::Expected("an integer, as a number or a string"),
        ))?;
        if value < min || value > max {
            return Err(Fault::at(offset, JsonReason::Range(range)));
        }
        Ok(bits(value))
    }

    fn double(&mut self) -> Result<f64, Fault> {
        const EXPECTED: &str = "a number, or one of \"NaN\", \"Infinity\" and \"-Infinity\"";
        let (offset, text) = self.number_or_string(EXPECTED)?;
        match text {
            b"NaN" => Ok(f64::NAN),
            b"Infinity" => Ok(f64::INFINITY),
            b"-Infinity" => Ok(f64::NEG_INFINITY),
            _ => number::double(text).ok_or(Fault::at(offset, JsonReason::Expected(EXPECTED))),
        }
    }

    fn enumeration(&mut self, of: Enum) -> Result<u64, Fault> {
        if self.reader.peek()? != b'"' {
            return self.integer(i32::MIN.into(), i32::MAX.into(), "int32");
        }
        let offset = self.reader.at();
        let text = self.reader.string()?.raw;
        let (prefix, names) = of.names();
        let named = text
            .strip_prefix(prefix.as_bytes())
            .and_then(|name| (0..).zip(names).find(|(_, known)| known.as_bytes() == name));
        match (named, number::integer(text)) {
            (Some((number, _)), _) => Ok(number),
            (None, Some(number)) if i32::try_from(number).is_ok() => Ok(bits(number)),
            _ => Err(Fault::at(offset, JsonReason::Name(prefix))),
        }
    }

    /// The text of a number, or of a string, which has no escapes if it is a number.
    fn number_or_string(&mut self, expected: &'static str) -> Result<(usize, &[u8]), Fault> {
        let first = self.reader.peek()?;
        let offset = self.reader.at();
        match first {
            b'"' => Ok((offset, self.reader.string()?.raw)),
            b'-' | b'0'..=b'9' => Ok((offset, self.reader.number()?)),
            _ => Err(Fault::at(offset, JsonReason::Expected(expected))),
        }
    }

    /// Adds the field to the path if its value has a fault.
    fn on_the_way<T>(
        &mut self,
        result: Result<T, Fault>,
        field: &'static Field,
        element: Option<usize>,
    ) -> Result<T, Fault> {
        if result.is_err() {
            self.fault_path.push(Step { field, element });
        }
        result
    }
}

/// The low 64 bits of a number that fits into them.
#[expect(clippy::cast_possible_truncation, reason = "its range was checked")]
fn bits(value: i128) -> u64 {
    value as u64
}

fn path(fault_path: &[Step]) -> String {
    let steps: Vec<String> = fault_path
        .iter()
        .rev()
        .map(|step| {
            let name: String = key::camel(step.field.name).map(char::from).collect();
            match step.element {
                Some(element) => format!("{name}[{element}]"),
                None => name,
            }
        })
        .collect();
    if steps.is_empty() {
        "the request itself".to_owned()
    } else {
        steps.join(".")
    }
}
