//! The programs by which a consumer's sink makes rows of events. Whoever makes rows of the same events again compares them with theirs.
//! No decision of an owner depends on them.

use super::Cursor;
use crate::entry::STREAMS_MAX;
use std::collections::BTreeMap;
use std::fmt;

/// Programs by stream. Empty: rows are as the events came.
pub type Programs = BTreeMap<String, ProgramHash>;

/// Maximum programs of a cursor.
pub(super) const PROGRAMS_MAX: usize = STREAMS_MAX;

/// The SHA-256 of all that decides which rows a program makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ProgramHash(pub [u8; 32]);

impl fmt::Display for ProgramHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ProgramHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// How a stream's program differs from the consumer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherProgram {
    /// Both have one, and these are not the same.
    Another,
    /// Only the consumer has one.
    Missing,
    /// Only the consumer has none.
    Added,
}

impl fmt::Display for OtherProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OtherProgram::Another => "the consumer has another program for it",
            OtherProgram::Missing => "the consumer has a program for it, and none is given",
            OtherProgram::Added => "the consumer has no program for it, and one is given",
        })
    }
}

impl Cursor {
    /// How the program for a stream among these differs from the consumer's. `None`: it does not, or the cursor does not say.
    pub fn other_program(&self, stream: &str, ours: &Programs) -> Option<OtherProgram> {
        match (self.programs.as_ref()?.get(stream), ours.get(stream)) {
            (Some(theirs), Some(ours)) => (theirs != ours).then_some(OtherProgram::Another),
            (Some(_), None) => Some(OtherProgram::Missing),
            (None, Some(_)) => Some(OtherProgram::Added),
            (None, None) => None,
        }
    }
}
