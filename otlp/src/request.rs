//! Borrowed views common to the requests of all signals: request, resource, scope, and their items.
//!
//! Messages follow protobuf's rules: fields in any order (a scope may follow its records), the last scalar wins,
//! occurrences of an embedded message merge, unknown fields are skipped. Only a request that passed [`validate`] has
//! views, so reading them cannot fail.

use crate::signal::Signal;
use crate::validate::{Counts, Malformed, validate};
use crate::value::{KeyValues, low_u32};
use crate::wire::{Reader, Value};
use std::marker::PhantomData;

/// An item of a scope: a log record, a span, or a metric.
pub trait Item<'a>: Sized {
    /// The signal of these items.
    const SIGNAL: Signal;

    /// Reads an item from the bytes of its validated message.
    fn read(bytes: &'a [u8]) -> Self;
}

/// A validated request.
#[derive(Debug)]
pub struct Request<'a, T> {
    payload: &'a [u8],
    counts: Counts,
    items: PhantomData<T>,
}

impl<'a, T: Item<'a>> Request<'a, T> {
    /// Validates `payload`.
    ///
    /// # Errors
    /// [`Malformed`], from [`validate`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, Malformed> {
        Ok(Self {
            payload,
            counts: validate(T::SIGNAL, payload)?,
            items: PhantomData,
        })
    }

    /// The number of records.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The resources, each with its scopes and their items.
    pub fn resources(&self) -> impl Iterator<Item = Resource<'a, T>> + use<'a, T> {
        Messages::new(self.payload, 1).map(Resource::read)
    }
}

/// The embedded messages in one repeated field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages<'a> {
    reader: Reader<'a>,
    number: u32,
}

impl<'a> Messages<'a> {
    pub(crate) fn new(bytes: &'a [u8], number: u32) -> Self {
        Self {
            reader: Reader::new(bytes),
            number,
        }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.reader.next_message(self.number)
    }
}

/// The telemetry of one resource.
#[derive(Debug)]
pub struct Resource<'a, T> {
    bytes: &'a [u8],
    scopes_field: u32,
    items: PhantomData<T>,
    /// The schema URL of the resource.
    pub schema_url: &'a [u8],
}

impl<'a, T: Item<'a>> Resource<'a, T> {
    fn read(bytes: &'a [u8]) -> Self {
        // Without scopes (2), their predecessor field (1000) counts, as in the Collector.
        let mut resource = Self {
            bytes,
            scopes_field: 1000,
            items: PhantomData,
            schema_url: &[],
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (2, Value::Len(_)) => resource.scopes_field = 2,
                (3, Value::Len(url)) => resource.schema_url = url,
                _ => {}
            }
        }
        resource
    }

    /// The resource's attributes.
    pub fn attributes(&self) -> impl Iterator<Item = crate::KeyValue<'a>> + use<'a, T> {
        Messages::new(self.bytes, 1).flat_map(|resource| KeyValues::new(resource, 1))
    }

    /// The scopes within it.
    pub fn scopes(&self) -> impl Iterator<Item = Scope<'a, T>> + use<'a, T> {
        Messages::new(self.bytes, self.scopes_field).map(Scope::read)
    }
}

/// The telemetry of one instrumentation scope of a resource.
#[derive(Debug)]
pub struct Scope<'a, T> {
    bytes: &'a [u8],
    items: PhantomData<T>,
    /// The schema URL of the scope and its items.
    pub schema_url: &'a [u8],
    /// The scope's name.
    pub name: &'a [u8],
    /// The scope's version.
    pub version: &'a [u8],
    /// Number of scope attributes that the source dropped.
    pub dropped_attributes_count: u32,
}

impl<'a, T: Item<'a>> Scope<'a, T> {
    fn read(bytes: &'a [u8]) -> Self {
        let mut scope = Self {
            bytes,
            items: PhantomData,
            schema_url: &[],
            name: &[],
            version: &[],
            dropped_attributes_count: 0,
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Len(message)) => scope.merge(message),
                (3, Value::Len(url)) => scope.schema_url = url,
                _ => {}
            }
        }
        scope
    }

    fn merge(&mut self, message: &'a [u8]) {
        let mut reader = Reader::new(message);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Len(name)) => self.name = name,
                (2, Value::Len(version)) => self.version = version,
                (4, Value::Varint(count)) => self.dropped_attributes_count = low_u32(count),
                _ => {}
            }
        }
    }

    /// The scope's attributes.
    pub fn attributes(&self) -> impl Iterator<Item = crate::KeyValue<'a>> + use<'a, T> {
        Messages::new(self.bytes, 1).flat_map(|scope| KeyValues::new(scope, 3))
    }

    /// The items of the scope.
    pub fn items(&self) -> impl Iterator<Item = T> + use<'a, T> {
        Messages::new(self.bytes, 2).map(T::read)
    }
}
