//! Mistakes made on purpose, one line each, where the protocols' rules are kept: so that the tests can be shown to find
//! them (`make planted-bugs`). They are compiled only with the feature `planted-bugs`, which a release build refuses, and do
//! nothing unless `MILLPOND_PLANTED_BUG` names one. Never a switch of the product.

#[cfg(all(feature = "planted-bugs", not(debug_assertions)))]
compile_error!("the feature `planted-bugs` is for tests: a release build must not have it");

/// Whether this build can have a planted bug.
pub const POSSIBLE: bool = cfg!(feature = "planted-bugs");

macro_rules! bugs {
    ($($(#[doc = $what:literal])+ $bug:ident = $name:literal,)+) => {
        /// A rule that is not kept.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug {
            $($(#[doc = $what])+ $bug,)+
        }

        /// Every bug and its name, as `MILLPOND_PLANTED_BUG` has it.
        pub const ALL: &[(Bug, &str)] = &[$((Bug::$bug, $name),)+];
    };
}

bugs! {
    /// A producer's commit is taken for new whatever the manifest's table says.
    ProducerTableIgnored = "producer-table-ignored",
    /// An attempt of unknown outcome is given up although the state that it named is still in force: it may land late. Then
    /// the producer tells callers that an outcome is unknown although the table has it.
    ResolvedTooEarly = "resolved-too-early",
    /// Other segments join a commit whose outcome is unknown.
    UnresolvedGroupChanged = "unresolved-group-changed",
    /// A group grows between a swap that was refused and the read that shows whether our own write caused the refusal,
    /// and the answer of the table counts for all of it.
    GroupGrowsAfterMismatch = "group-grows-after-mismatch",
    /// The clock of a producer that registers decides which others are forgotten.
    ClockEmptiesProducerTable = "clock-empties-producer-table",
    /// A producer that was forgotten sends again what may have been committed.
    ForgottenSentAgain = "forgotten-sent-again",
    /// Segments that are named before the orphan floor are committed.
    OrphanFloorIgnored = "orphan-floor-ignored",
    /// Sealing takes the entries out of the tail and forgets to refer to their page.
    PageReferenceDropped = "page-reference-dropped",
    /// A manifest refers to a page that is not in the store.
    PageNotStored = "page-not-stored",
    /// The checksum of manifests, pages and cursors is not checked.
    ChecksumIgnored = "checksum-ignored",
    /// The garbage collector deletes what a manifest that is not in force yet does not refer to.
    DeleteBeforeTrim = "delete-before-trim",
    /// An owner goes on with a cursor that another one has opened.
    FenceIgnored = "fence-ignored",
    /// An owner begins batches although its lease has run out.
    LeaseIgnored = "lease-ignored",
    /// Batches are sent before a durable cursor plans them.
    PlanAfterSink = "plan-after-sink",
    /// Batches of one large segment are sent without a plan: the policy says that they are batches.
    LargeNotPlanned = "large-not-planned",
    /// The position moves to the end of the last finished batch.
    AcknowledgeOverHole = "acknowledge-over-hole",
    /// What is not loaded of the log is taken for its end.
    HorizonIgnored = "horizon-ignored",
    /// The position of a stream of which nothing is acknowledged is not written.
    PositionNotWritten = "position-not-written",
    /// An opening brings its own policy into force although the cursor was not released.
    PolicyNotPinned = "policy-not-pinned",
    /// A cursor with planned batches is released as if nothing were in doubt.
    ReleasedInDoubt = "released-in-doubt",
    /// An owner that goes takes back what its predecessor planned ahead, too.
    WithdrawnInDoubt = "withdrawn-in-doubt",
    /// A read of the log that began before the leases of earlier owners ran out counts as one that shows all they sent.
    ReadBeforeLeaseRanOut = "read-before-lease-ran-out",
    /// A chunk's token does not say which chunk of the batch it is.
    TokenWithoutChunk = "token-without-chunk",
    /// A batch that may have been sent is cut into smaller chunks than before.
    RetryWithOtherChunks = "retry-with-other-chunks",
    /// A second attempt is made as if there had been no first.
    RetryNotAnnounced = "retry-not-announced",
    /// A success of a second attempt is taken for rows in the sink: nobody asks again.
    SuccessTrusted = "success-trusted",
    /// A chunk that may have been sent goes out whole before the sink is asked for its rows.
    SentBeforeAsked = "sent-before-asked",
    /// The first round of a chunk that may have been sent is left out.
    RoundSkipped = "round-skipped",
    /// After a reset, rows that were sent before it are taken for rows never sent.
    ResetForgetsSent = "reset-forgets-sent",
    /// A reset, a skip or a removal keeps the tokens.
    GenerationKept = "generation-kept",
    /// The owner after a reset, a skip or a removal does not wait for requests that are under way.
    ResetUnsettled = "reset-unsettled",
    /// A second reset forgets how long the owners before the first one may send.
    SecondResetForgetsLease = "second-reset-forgets-lease",
    /// A new cursor assumes that no earlier cursor sent anything.
    NewCursorSentNothing = "new-cursor-sent-nothing",
    /// An attempt does not wait for a later round of the attempt before.
    LaterRoundForgotten = "later-round-forgotten",
    /// A batch is told that its later round is announced while a swap that settles the cursor may still land.
    AnnouncedTooEarly = "announced-too-early",
    /// A later round acts on an answer that is not certain.
    UncertainLaterRound = "uncertain-later-round",
    /// A successor is not told of later rounds.
    LaterRoundUnannounced = "later-round-unannounced",
    /// A skip inside a planned batch leaves the batch's tokens as they are.
    SkipKeepsTokens = "skip-keeps-tokens",
    /// A skip inside a planned batch keeps what the sink refused of the chunks before the skip.
    SkipKeepsRefusals = "skip-keeps-refusals",
    /// The halves of a refused chunk are sent before the cursor records the refusal.
    HalvesBeforeRefusal = "halves-before-refusal",
    /// An address that was compared once is used again without a comparison.
    AddressTrusted = "address-trusted",
    /// An attempt forgets that an earlier one found a token without its rows.
    LossForgotten = "loss-forgotten",
    /// A chunk is sent whole although the cursor records that it was refused.
    RefusedSentAgain = "refused-sent-again",
    /// A refused row gets no dead letter.
    LetterForgotten = "letter-forgotten",
    /// An owner takes a cursor of its own epoch for its own, whoever opened it.
    EpochFences = "epoch-fences",
    /// An owner whose cursor was removed makes a new one.
    RemovalIgnored = "removal-ignored",
    /// A lease runs for as long as the uptime says, whatever the wall clock says.
    WallClockIgnored = "wall-clock-ignored",
    /// A request that is under way when the lease runs out is not dropped.
    RequestOutlivesLease = "request-outlives-lease",
    /// Rows are sent on an answer of the sink that is older than the lease.
    AnswerOutlivesLease = "answer-outlives-lease",
    /// An opening forgets the longer lease of an owner that was fenced.
    LongestLeaseForgotten = "longest-lease-forgotten",
    /// The owner after a reset, a skip or a removal does not wait for the leases of earlier owners.
    LeaseNotOutlived = "lease-not-outlived",
    /// Batches that a predecessor planned are sent as new where the log was not there at the opening.
    InheritedSentAsNew = "inherited-sent-as-new",
    /// A replay takes a name for its rows that a consumer can have.
    ReplaySharesName = "replay-shares-name",
    /// A consumer may have the name of a repair's cursor.
    RepairNameFree = "repair-name-free",
    /// Rows that came under tokens of another generation are sent again where a replica may have them.
    UncertainTrusted = "uncertain-trusted",
    /// A later round acts on a question that earlier requests were still under way for.
    LaterRoundUnsettled = "later-round-unsettled",
    /// A chunk of which the sink has some rows is sent whole.
    WholeChunkAgain = "whole-chunk-again",
    /// Requests that another server passes on are not ended with the one that began them.
    SettledByOwnId = "settled-by-own-id",
    /// Requests at the address in use are ended, and those at other addresses go on.
    SettledAtOneAddress = "settled-at-one-address",
    /// A request that fails at one address is sent to another one within the same attempt, without a question.
    FailoverWithinAttempt = "failover-within-attempt",
    /// An owner looks at its lease once a batch.
    LeaseCheckedOnce = "lease-checked-once",
}

/// Whether this bug is planted.
#[cfg(not(feature = "planted-bugs"))]
pub const fn is(_: Bug) -> bool {
    false
}

/// Whether this bug is planted.
///
/// # Panics
/// When `MILLPOND_PLANTED_BUG` names none.
#[cfg(feature = "planted-bugs")]
pub fn is(bug: Bug) -> bool {
    static PLANTED: std::sync::OnceLock<Option<Bug>> = std::sync::OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let wanted = std::env::var("MILLPOND_PLANTED_BUG")
            .ok()
            .filter(|name| !name.is_empty())?;
        let found = ALL.iter().find(|(_, name)| *name == wanted);
        Some(
            found
                .unwrap_or_else(|| panic!("MILLPOND_PLANTED_BUG={wanted}: there is no such bug"))
                .0,
        )
    });
    *planted == Some(bug)
}
