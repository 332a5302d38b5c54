//! Times by key, at most 40 bytes for each: partitions with open addressing, which grow one at a time and by a quarter,
//! so that neither a doubling nor a copy of everything costs memory. Keys are hashes, but senders choose what is hashed, so each table
//! mixes them with numbers that nobody knows.

/// Partitions. While one grows, its old copy takes at most a thousandth of the memory.
const PARTITIONS: usize = 1_024;

/// The smallest capacity of a partition that is not empty.
const SLOTS_MIN: usize = 8;

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The key in two words, since a `u128` would be aligned to 16 bytes.
    key: [u64; 2],
    at_us: i64,
}

/// No row was received at this time.
const EMPTY: Slot = Slot {
    key: [0; 2],
    at_us: i64::MIN,
};

#[derive(Debug, Clone, Default)]
struct Partition {
    slots: Vec<Slot>,
    used: usize,
}

/// Times by key.
#[derive(Debug)]
pub(crate) struct Table {
    partitions: Vec<Partition>,
    secret: Secret,
    len: usize,
}

/// Random numbers that choose the places of keys. No decision depends on them.
#[derive(Debug, Clone, Copy)]
struct Secret([u64; 2]);

impl Secret {
    /// Mixes the words of a key. The low bits choose the partition, the high ones the slot.
    fn mix(self, key: [u64; 2]) -> u64 {
        let Secret([first, second]) = self;
        let product = u128::from(key[0] ^ first) * u128::from(key[1] ^ second);
        let [low, high] = words(product);
        low ^ high
    }
}

/// The result of a search.
#[derive(Debug)]
pub(crate) struct Look {
    /// The key's time.
    pub(crate) at_us: Option<i64>,
    key: [u64; 2],
    partition: usize,
    /// Its place, or the empty one where it would be. `None`: the partition has no slots.
    place: Option<usize>,
}

/// The two words of a key.
fn words(key: u128) -> [u64; 2] {
    #[expect(clippy::cast_possible_truncation, reason = "these are the two halves")]
    [key as u64, (key >> 64) as u64]
}

fn partition(mixed: u64) -> usize {
    usize::try_from(mixed % PARTITIONS as u64).expect("it is small")
}

/// A number below `slots`, in proportion to the word.
fn first_place(mixed: u64, slots: usize) -> usize {
    let place = (u128::from(mixed) * slots as u128) >> 64;
    usize::try_from(place).expect("it is below a number of slots")
}

impl Partition {
    /// The place of a key, or the empty one where it would be. `None` without slots.
    fn place(&self, key: [u64; 2], mixed: u64) -> Option<usize> {
        let slots = self.slots.len();
        if slots == 0 {
            return None;
        }
        let mut place = first_place(mixed, slots);
        // Two ninths of the slots are empty.
        while self.slots[place].at_us != i64::MIN && self.slots[place].key != key {
            place += 1;
            if place == slots {
                place = 0;
            }
        }
        Some(place)
    }

    /// Adds a key that is not there, and whose place would be this one.
    fn insert(&mut self, slot: Slot, place: Option<usize>, secret: Secret) {
        // Searches read few slots as long as no more are in use.
        let place = match place {
            Some(place) if (self.used + 1) * 9 <= self.slots.len() * 7 => place,
            _ => {
                self.rebuild(self.slots.len() * 5 / 4, secret, |_| true);
                self.place(slot.key, secret.mix(slot.key)).expect("it has slots")
            }
        };
        self.slots[place] = slot;
        self.used += 1;
    }

    /// Moves the slots that `keep` selects into new ones.
    fn rebuild(&mut self, slots: usize, secret: Secret, keep: impl Fn(i64) -> bool) {
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; slots.max(SLOTS_MIN)]);
        self.used = 0;
        for slot in old {
            if slot.at_us != i64::MIN && keep(slot.at_us) {
                let place = self.place(slot.key, secret.mix(slot.key));
                self.slots[place.expect("it has slots")] = slot;
                self.used += 1;
            }
        }
    }
}

impl Table {
    /// An empty table. The random number is a secret from senders.
    pub(crate) fn new(random: u128) -> Table {
        Table {
            partitions: vec![Partition::default(); PARTITIONS],
            secret: Secret(words(random)),
            len: 0,
        }
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of its slots.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        let slots: usize = self
            .partitions
            .iter()
            .map(|partition| partition.slots.capacity())
            .sum();
        slots * size_of::<Slot>() + PARTITIONS * size_of::<Partition>()
    }

    /// The longest run of used slots, and the most of a partition.
    #[cfg(test)]
    pub(crate) fn longest(&self) -> [usize; 2] {
        let runs = self.partitions.iter().flat_map(|partition| {
            let runs = partition.slots.split(|slot| slot.at_us == i64::MIN);
            runs.map(<[Slot]>::len)
        });
        let used = self.partitions.iter().map(|partition| partition.used);
        [runs.max().unwrap_or(0), used.max().unwrap_or(0)]
    }

    /// Looks for a key.
    pub(crate) fn look(&self, key: u128) -> Look {
        let key = words(key);
        let mixed = self.secret.mix(key);
        let partition = partition(mixed);
        let slots = &self.partitions[partition];
        let place = slots.place(key, mixed);
        let at_us = place.map(|place| slots.slots[place].at_us);
        Look {
            key,
            partition,
            place,
            at_us: at_us.filter(|at_us| *at_us != i64::MIN),
        }
    }

    /// Fetches the places of keys into the processor's caches, all at the same time, since the places of hashes are anywhere.
    pub(crate) fn fetch(&self, keys: impl Iterator<Item = u128>) {
        let firsts = keys.map(|key| {
            let mixed = self.secret.mix(words(key));
            let slots = &self.partitions[partition(mixed)].slots;
            slots
                .get(first_place(mixed, slots.len()))
                .map_or(0, |slot| slot.at_us)
        });
        // Nobody needs the sum.
        std::hint::black_box(firsts.fold(0, i64::wrapping_add));
    }

    /// Raises the time of a key to this one, or adds the key. The table is as it was at the look.
    pub(crate) fn raise(&mut self, look: &Look, at_us: i64) {
        let slot = Slot {
            key: look.key,
            // The one time that marks an empty slot.
            at_us: at_us.max(i64::MIN + 1),
        };
        let partition = &mut self.partitions[look.partition];
        match (look.at_us, look.place) {
            (Some(known), Some(place)) if known < at_us => partition.slots[place] = slot,
            (Some(_), _) => {}
            (None, place) => {
                partition.insert(slot, place, self.secret);
                self.len += 1;
            }
        }
    }

    /// Keeps the keys whose times `keep` selects. Returns the number of the others.
    pub(crate) fn retain(&mut self, keep: impl Fn(i64) -> bool) -> usize {
        let before = self.len;
        for partition in &mut self.partitions {
            let kept = partition
                .slots
                .iter()
                .filter(|slot| slot.at_us != i64::MIN && keep(slot.at_us));
            let kept = kept.count();
            if kept < partition.used {
                self.len -= partition.used - kept;
                match kept {
                    0 => *partition = Partition::default(),
                    _ => partition.rebuild(kept * 4 / 3 + 1, self.secret, &keep),
                }
            }
        }
        before - self.len
    }
}
