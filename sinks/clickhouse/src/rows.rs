//! OTLP records as rows, column by column, with the values of the Collector's clickhouseexporter (v0.161). It never
//! decides where a chunk ends.

pub(crate) mod attributes;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod shared_maps;
#[cfg(test)]
mod tests;
pub(crate) mod traces;

use crate::native::{Column, Numbers, Strings, Ticks};
use crate::schema::Table;
use crate::text;
use millpond_consumer::RowId;
use millpond_otlp::{Item, KeyValue};

/// A group of columns.
pub(crate) trait Columns: Default {
    /// Appends the columns in order.
    fn list<'a>(&'a self, columns: &mut Vec<&'a dyn Column>);
    /// Bytes in the columns. It decides where a chunk ends, so it depends on the rows alone.
    fn raw_len(&self) -> usize;
    fn clear(&mut self);
    /// Appends these rows of `from`.
    fn append(&mut self, from: &Self, rows: &[usize]);
}

impl<C: Column + Default> Columns for C {
    fn list<'a>(&'a self, columns: &mut Vec<&'a dyn Column>) {
        columns.push(self);
    }

    fn raw_len(&self) -> usize {
        Column::raw_len(self)
    }

    fn clear(&mut self) {
        Column::clear(self);
    }

    fn append(&mut self, from: &Self, rows: &[usize]) {
        Column::append(self, from, rows);
    }
}

/// A struct of columns, or of structs of columns.
macro_rules! columns {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        #[derive(Default)]
        pub(crate) struct $name {
            $(pub(crate) $field: $kind,)*
        }

        impl $crate::rows::Columns for $name {
            fn list<'a>(&'a self, columns: &mut Vec<&'a dyn $crate::native::Column>) {
                $($crate::rows::Columns::list(&self.$field, columns);)*
            }

            fn raw_len(&self) -> usize {
                0 $(+ $crate::rows::Columns::raw_len(&self.$field))*
            }

            fn clear(&mut self) {
                $($crate::rows::Columns::clear(&mut self.$field);)*
            }

            fn append(&mut self, from: &Self, rows: &[usize]) {
                $($crate::rows::Columns::append(&mut self.$field, &from.$field, rows);)*
            }
        }
    };
}

pub(crate) use columns;

/// The exporter's columns of a table, in its order.
pub(crate) trait TableColumns: Columns {
    const TABLE: Table;

    /// The day of each row's time, since 1970.
    fn days(&self) -> impl Iterator<Item = i64>;
}

/// The origin of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    /// The identity of the record.
    pub(crate) id: RowId,
    /// Receive time of the record's message, in microseconds.
    pub(crate) received_at_us: i64,
}

/// The rows of an incomplete chunk.
#[derive(Default)]
pub(crate) struct Rows<C> {
    pub(crate) columns: C,
    /// Receive times of the messages, in microseconds.
    pub(crate) received_at: Ticks,
    /// The rows' identities, in two columns.
    pub(crate) sequences: Numbers<u64>,
    pub(crate) records: Numbers<u32>,
}

impl<C: TableColumns> Rows<C> {
    pub(crate) fn len(&self) -> usize {
        self.received_at.0.len()
    }

    pub(crate) fn raw_len(&self) -> usize {
        self.columns.raw_len()
    }

    pub(crate) fn clear(&mut self) {
        let Self {
            columns,
            received_at,
            sequences,
            records,
        } = self;
        columns.clear();
        Column::clear(received_at);
        Column::clear(sequences);
        Column::clear(records);
    }

    /// Ends a row with this origin.
    pub(crate) fn end_row(&mut self, origin: Origin) {
        self.received_at.0.push(origin.received_at_us);
        self.sequences.0.push(origin.id.sequence);
        self.records.0.push(origin.id.record);
    }

    pub(crate) fn origins(&self) -> impl Iterator<Item = Origin> {
        let ids = self.sequences.0.iter().zip(&self.records.0);
        let both = self.received_at.0.iter().zip(ids);
        both.map(|(&received_at_us, (&sequence, &record))| Origin {
            id: RowId { sequence, record },
            received_at_us,
        })
    }

    /// A copy of these rows.
    pub(crate) fn some(&self, rows: &[usize]) -> Self {
        let mut some = Self::default();
        some.columns.append(&self.columns, rows);
        Column::append(&mut some.received_at, &self.received_at, rows);
        Column::append(&mut some.sequences, &self.sequences, rows);
        Column::append(&mut some.records, &self.records, rows);
        some
    }
}

/// Values that all rows of a resource share.
pub(crate) struct Resource<'a> {
    service: Vec<u8>,
    schema_url: &'a [u8],
    attributes: Attributes<'a>,
}

impl<'a> Resource<'a> {
    pub(crate) fn new<T: Item<'a>>(resource: &millpond_otlp::Resource<'a, T>) -> Self {
        let pairs: Vec<_> = resource.attributes().collect();
        let mut service = Vec::new();
        // The first of several, like the exporter.
        if let Some(pair) = pairs.iter().find(|pair| pair.key == b"service.name") {
            text::render(pair.value, &mut service);
        }
        Self {
            service,
            schema_url: resource.schema_url,
            attributes: Attributes::new(pairs),
        }
    }
}

/// Values that all rows of a scope share.
pub(crate) struct Scope<'a> {
    name: &'a [u8],
    version: &'a [u8],
    schema_url: &'a [u8],
    dropped_attributes_count: u32,
    attributes: Attributes<'a>,
}

impl<'a> Scope<'a> {
    pub(crate) fn new<T: Item<'a>>(scope: &millpond_otlp::Scope<'a, T>) -> Self {
        Self {
            name: scope.name,
            version: scope.version,
            schema_url: scope.schema_url,
            dropped_attributes_count: scope.dropped_attributes_count,
            attributes: Attributes::new(scope.attributes().collect()),
        }
    }
}

/// Attributes for a map column, shared by many rows.
struct Attributes<'a> {
    keys: Vec<&'a [u8]>,
    values: Strings,
}

impl<'a> Attributes<'a> {
    fn new(mut pairs: Vec<KeyValue<'a>>) -> Self {
        pairs.sort_by(|one, other| one.key.cmp(other.key));
        let mut attributes = Self {
            keys: Vec::with_capacity(pairs.len()),
            values: Strings::default(),
        };
        let mut scratch = Vec::new();
        for pair in pairs {
            attributes.keys.push(pair.key);
            text::push(pair.value, &mut attributes.values, &mut scratch);
        }
        attributes
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Appends an id as lower-case hexadecimal. An id of zeros or of the wrong length becomes empty: OTLP says to treat it
/// as missing (the Collector rejects such a request).
fn push_id(id: &[u8], length: usize, column: &mut Strings) {
    if id.len() != length || id.iter().all(|&byte| byte == 0) {
        column.push(b"");
    } else {
        push_hex(id, column);
    }
}

/// Takes at most 16 bytes.
fn push_hex(id: &[u8], column: &mut Strings) {
    let mut text = [0; 32];
    for (digits, byte) in text.chunks_exact_mut(2).zip(id) {
        digits[0] = HEX[usize::from(byte >> 4)];
        digits[1] = HEX[usize::from(byte & 15)];
    }
    column.push(&text[..2 * id.len()]);
}

/// The day of a time in unix nanoseconds.
fn day(nanoseconds: i64) -> i64 {
    nanoseconds.div_euclid(86_400_000_000_000)
}
