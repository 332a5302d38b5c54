//! A map column whose rows are copies of few maps, like the attributes of a resource: it stores each map once, and a row
//! is a number. It writes what [`Maps`](crate::native::Maps) with the same rows would write.

use super::Attributes;
use crate::frame::Frames;
use crate::native::{Column, Dictionary, Order, put_number, write_words};

/// Map(LowCardinality(String), String).
#[derive(Default)]
pub(crate) struct SharedMaps {
    /// The keys of all maps. It has no rows.
    keys: Dictionary,
    /// The indexes of each map's keys, map after map.
    numbers: Vec<u32>,
    /// The encoded values of each map, map after map.
    values: Vec<u8>,
    /// Where each map ends in both.
    ends: Vec<(usize, usize)>,
    /// The map of each row.
    rows: Vec<u32>,
    /// Entries of all rows.
    entries: usize,
    /// Bytes of the values of all rows.
    values_len: usize,
}

impl SharedMaps {
    /// The number of this map until the next `clear`.
    pub(super) fn number(&mut self, map: &Attributes) -> u32 {
        let keys = map.keys.iter().copied();
        self.add(keys, map.values.encoded(0..map.keys.len()))
    }

    fn add<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>, values: &[u8]) -> u32 {
        let (start, values_start) = (self.numbers.len(), self.values.len());
        let numbers = keys.map(|key| self.keys.number(key));
        self.numbers.extend(numbers);
        // Neighbouring requests are often of one resource.
        if let Some(last) = self.ends.len().checked_sub(1) {
            let (last_numbers, last_values) = self.map(last);
            if *last_numbers == self.numbers[start..] && *last_values == *values {
                self.numbers.truncate(start);
                return as_number(last);
            }
        }
        self.values.extend_from_slice(values);
        debug_assert_eq!(values_start + values.len(), self.values.len());
        self.ends.push((self.numbers.len(), self.values.len()));
        as_number(self.ends.len() - 1)
    }

    /// The indexes of a map's keys, and its encoded values.
    fn map(&self, map: usize) -> (&[u32], &[u8]) {
        let (numbers, values) = self.span(map);
        (&self.numbers[numbers], &self.values[values])
    }

    #[inline]
    fn span(&self, map: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (start, values_start) = map.checked_sub(1).map_or((0, 0), |before| self.ends[before]);
        let (end, values_end) = self.ends[map];
        (start..end, values_start..values_end)
    }

    /// Appends a row.
    #[inline]
    pub(crate) fn push(&mut self, map: u32) {
        let (numbers, values) = self.span(map as usize);
        self.entries += numbers.len();
        self.values_len += values.len();
        self.rows.push(map);
    }

    /// The maps of the rows in this order.
    fn in_order<'a>(&'a self, order: Order<'a>) -> impl Iterator<Item = usize> + 'a {
        let rows = self.rows.len();
        let row = move |place| order.map_or(place, |order| order[place] as usize);
        (0..rows).map(move |place| self.rows[row(place)] as usize)
    }
}

/// A chunk has under 2^32 maps: its bytes are limited.
fn as_number(map: usize) -> u32 {
    u32::try_from(map).expect("a chunk has under 2^32 maps")
}

impl Column for SharedMaps {
    fn write_versions(&self, frames: &mut Frames) {
        self.keys.write_versions(frames);
    }

    fn write_values(&self, order: Order<'_>, frames: &mut Frames) {
        let ends = self.in_order(order).scan(0, |end, map| {
            *end += self.span(map).0.len() as u64;
            Some(*end)
        });
        write_words(ends, frames);
        if self.entries == 0 {
            return;
        }
        let width = self.keys.write_head(self.entries, frames);
        let mut numbers = Vec::with_capacity(4 * self.numbers.len());
        for &number in &self.numbers {
            put_number(number, width, &mut numbers);
        }
        let bytes = numbers.len() / self.numbers.len();
        for map in self.in_order(order) {
            let (keys, _) = self.span(map);
            frames.write(&numbers[bytes * keys.start..bytes * keys.end]);
        }
        for map in self.in_order(order) {
            frames.write(self.map(map).1);
        }
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn raw_len(&self) -> usize {
        8 * self.rows.len() + self.keys.raw_len() + 4 * self.entries + self.values_len
    }

    fn clear(&mut self) {
        let Self {
            keys,
            numbers,
            values,
            ends,
            rows,
            entries,
            values_len,
        } = self;
        keys.clear();
        numbers.clear();
        values.clear();
        ends.clear();
        rows.clear();
        (*entries, *values_len) = (0, 0);
    }

    fn append(&mut self, from: &Self, rows: &[usize]) {
        let mut known: Vec<Option<u32>> = vec![None; from.ends.len()];
        for &row in rows {
            let map = from.rows[row] as usize;
            let number = *known[map].get_or_insert_with(|| {
                let (numbers, values) = from.map(map);
                self.add(numbers.iter().map(|&number| from.keys.value(number)), values)
            });
            self.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::decompress;
    use crate::native::{Maps, Strings};
    use proptest::prelude::*;

    fn written(column: &impl Column, order: Order<'_>) -> Vec<u8> {
        let mut frames = Frames::default();
        column.write_in(order, &mut frames);
        decompress(&frames.finish().0)
    }

    /// The pairs of some maps, with many keys over all of them, and the map of each row.
    fn drawn() -> impl Strategy<Value = (Vec<Vec<(u16, String)>>, Vec<usize>)> {
        let maps = prop::collection::vec(prop::collection::vec((0..600_u16, "[a-c]{0,3}"), 0..40), 1..30);
        maps.prop_flat_map(|maps| {
            let rows = prop::collection::vec(0..maps.len(), 0..60);
            (Just(maps), rows)
        })
    }

    proptest! {
        #[test]
        fn the_column_is_the_one_with_every_row_written_out((pairs, rows) in drawn(), seed in any::<u64>()) {
            let keys: Vec<String> = (0..600).map(|key| format!("key{key}")).collect();
            let key = |number: u16| keys[usize::from(number)].as_bytes();
            let mut shared = SharedMaps::default();
            let mut maps = Maps::default();
            for &row in &rows {
                let mut attributes = Attributes { keys: Vec::new(), values: Strings::default() };
                for (number, value) in &pairs[row] {
                    attributes.keys.push(key(*number));
                    attributes.values.push(value.as_bytes());
                    maps.keys.push(key(*number));
                    maps.values.push(value.as_bytes());
                }
                maps.end_row();
                let number = shared.number(&attributes);
                shared.push(number);
                prop_assert_eq!(Column::raw_len(&shared), Column::raw_len(&maps));
            }
            prop_assert_eq!(written(&shared, None), written(&maps, None));

            let mut order: Vec<u32> = (0..).take(rows.len()).collect();
            order.sort_by_key(|row| (u64::from(*row) + 1).wrapping_mul(seed | 1));
            prop_assert_eq!(written(&shared, Some(&order)), written(&maps, Some(&order)));

            let some: Vec<usize> = order.iter().map(|&row| row as usize).step_by(2).collect();
            let (mut some_shared, mut some_maps) = (SharedMaps::default(), Maps::default());
            Column::append(&mut some_shared, &shared, &some);
            Column::append(&mut some_maps, &maps, &some);
            prop_assert_eq!(written(&some_shared, None), written(&some_maps, None));
            prop_assert_eq!(Column::raw_len(&some_shared), Column::raw_len(&some_maps));
        }
    }
}
