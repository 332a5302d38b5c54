//! Attributes that differ from row to row.

use crate::frame::Frames;
use crate::native::{Column, Maps, Order};
use crate::text;
use millpond_otlp::KeyValue;

/// A sequence of attribute keys: its sort order, and the keys' indexes in that order. Most records repeat the keys of
/// the previous one, so sorting and lookups happen rarely.
struct Shape {
    keys: Vec<Box<[u8]>>,
    order: Vec<usize>,
    numbers: Vec<u32>,
}

impl Shape {
    fn fits(&self, pairs: &[KeyValue]) -> bool {
        self.keys.len() == pairs.len() && self.keys.iter().zip(pairs).all(|(key, pair)| **key == *pair.key)
    }
}

/// Maximum number of remembered shapes.
const SHAPES_MAX: usize = 16;

/// Map(LowCardinality(String), String), sorted by key. Equal keys keep their order.
#[derive(Default)]
pub(crate) struct AttributeMaps {
    maps: Maps,
    shapes: Vec<Shape>,
    /// The last matching shape; the one after it is the next to be replaced.
    shape: usize,
}

/// Scratch space, kept to save allocations.
#[derive(Default)]
pub(crate) struct Space<'a> {
    pub(crate) pairs: Vec<KeyValue<'a>>,
    pub(crate) text: Vec<u8>,
}

impl AttributeMaps {
    /// Appends one row.
    #[inline]
    pub(crate) fn push<'a>(&mut self, pairs: impl Iterator<Item = KeyValue<'a>>, space: &mut Space<'a>) {
        space.pairs.clear();
        space.pairs.extend(pairs);
        if !space.pairs.is_empty() {
            self.push_pairs(&space.pairs, &mut space.text);
        }
        self.maps.end_row();
    }

    fn push_pairs(&mut self, pairs: &[KeyValue], scratch: &mut Vec<u8>) {
        if !self.shapes.get(self.shape).is_some_and(|shape| shape.fits(pairs)) {
            self.shape = self
                .shapes
                .iter()
                .position(|shape| shape.fits(pairs))
                .unwrap_or_else(|| self.learn(pairs));
        }
        let shape = &self.shapes[self.shape];
        for (&place, &number) in shape.order.iter().zip(&shape.numbers) {
            self.maps.keys.push_number(number);
            text::push(pairs[place].value, &mut self.maps.values, scratch);
        }
    }

    /// Stores the shape of `pairs`. At the limit it replaces the one after the last match.
    fn learn(&mut self, pairs: &[KeyValue]) -> usize {
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        // Stable: equal keys keep their order.
        order.sort_by(|&one, &other| pairs[one].key.cmp(pairs[other].key));
        let numbers = order
            .iter()
            .map(|&place| self.maps.keys.number(pairs[place].key))
            .collect();
        let shape = Shape {
            keys: pairs.iter().map(|pair| pair.key.into()).collect(),
            order,
            numbers,
        };
        if self.shapes.len() < SHAPES_MAX {
            self.shapes.push(shape);
            return self.shapes.len() - 1;
        }
        let place = (self.shape + 1) % SHAPES_MAX;
        self.shapes[place] = shape;
        place
    }
}

impl Column for AttributeMaps {
    fn write_versions(&self, frames: &mut Frames) {
        self.maps.write_versions(frames);
    }

    fn write_values(&self, order: Order<'_>, frames: &mut Frames) {
        self.maps.write_values(order, frames);
    }

    fn rows(&self) -> usize {
        self.maps.rows()
    }

    fn raw_len(&self) -> usize {
        self.maps.raw_len()
    }

    fn clear(&mut self) {
        let Self { maps, shapes, shape } = self;
        maps.clear();
        // Shapes hold indexes of the dictionary.
        shapes.clear();
        *shape = 0;
    }

    fn append(&mut self, from: &Self, rows: &[usize]) {
        self.maps.append(&from.maps, rows);
    }
}

#[cfg(test)]
impl AttributeMaps {
    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }
}
