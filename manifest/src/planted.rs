//! Deliberate bugs, one line each, at the places that uphold the protocols' rules. They prove that the tests find such
//! bugs (`make planted-bugs`). They are compiled only with the feature `planted-bugs`, which a release build rejects,
//! and do nothing unless `MILLPOND_PLANTED_BUG` names one. They are never an option of the product.

#[cfg(all(feature = "planted-bugs", not(debug_assertions)))]
compile_error!("the feature `planted-bugs` is for tests: a release build must not have it");

/// True if this build can have a planted bug.
pub const POSSIBLE: bool = cfg!(feature = "planted-bugs");

macro_rules! bugs {
    ($($(#[doc = $what:literal])+ $bug:ident = $name:literal,)+) => {
        /// A violated rule.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug {
            $($(#[doc = $what])+ $bug,)+
        }

        /// Every bug with its name in `MILLPOND_PLANTED_BUG`.
        pub const ALL: &[(Bug, &str)] = &[$((Bug::$bug, $name),)+];
    };
}

bugs! {
    /// A producer treats its commit as new, whatever the manifest's table shows.
    ProducerTableIgnored = "producer-table-ignored",
    /// A producer gives up an attempt of unknown outcome although the expected state is still in force: the attempt may
    /// land late. It then tells callers that an outcome is unknown although the table has it.
    ResolvedTooEarly = "resolved-too-early",
    /// Other segments join a commit with an unknown outcome.
    UnresolvedGroupChanged = "unresolved-group-changed",
    /// A group grows between a refused swap and the read that shows whether our own write caused the refusal, and the
    /// table's answer counts for the whole group.
    GroupGrowsAfterMismatch = "group-grows-after-mismatch",
    /// The clock of a registering producer decides which other producers are forgotten.
    ClockEmptiesProducerTable = "clock-empties-producer-table",
    /// A forgotten producer resends segments that may have been committed.
    ForgottenSentAgain = "forgotten-sent-again",
    /// A producer commits segments that are named before the orphan floor.
    OrphanFloorIgnored = "orphan-floor-ignored",
    /// Sealing removes the entries from the tail without a reference to their page.
    PageReferenceDropped = "page-reference-dropped",
    /// A manifest refers to a page that is not in the store.
    PageNotStored = "page-not-stored",
    /// Nobody checks the checksum of manifests, pages and cursors.
    ChecksumIgnored = "checksum-ignored",
    /// The garbage collector deletes objects that a manifest does not refer to before that manifest is in force.
    DeleteBeforeTrim = "delete-before-trim",
    /// An owner continues with a cursor that another owner has opened.
    FenceIgnored = "fence-ignored",
    /// An owner starts batches although its lease has expired.
    LeaseIgnored = "lease-ignored",
    /// An owner sends batches before a durable cursor plans them.
    PlanAfterSink = "plan-after-sink",
    /// An owner sends a batch of one large segment without a plan, because the policy makes it a batch.
    LargeNotPlanned = "large-not-planned",
    /// The position moves to the end of the last finished batch, across holes.
    AcknowledgeOverHole = "acknowledge-over-hole",
    /// The consumer treats the first unloaded page as the end of the log.
    HorizonIgnored = "horizon-ignored",
    /// The cursor does not record the position of a stream without acknowledgements.
    PositionNotWritten = "position-not-written",
    /// An opening applies its own policy although the cursor was not released.
    PolicyNotPinned = "policy-not-pinned",
    /// An owner releases a cursor with planned batches as if nothing were in doubt.
    ReleasedInDoubt = "released-in-doubt",
    /// An owner that ends also withdraws its predecessor's plans ahead.
    WithdrawnInDoubt = "withdrawn-in-doubt",
    /// A chunk's token does not contain the chunk's number.
    TokenWithoutChunk = "token-without-chunk",
    /// A successor cuts a batch that may have been sent into smaller chunks than before.
    RetryWithOtherChunks = "retry-with-other-chunks",
    /// A second attempt runs as if there had been no first.
    RetryNotAnnounced = "retry-not-announced",
    /// The consumer takes the success of a second attempt as proof that the rows are in the sink, and does not ask
    /// again.
    SuccessTrusted = "success-trusted",
    /// A chunk that may have been sent goes out whole before the consumer asks the sink for its rows.
    SentBeforeAsked = "sent-before-asked",
    /// A chunk that may have been sent skips the first round.
    RoundSkipped = "round-skipped",
    /// After a reset, rows that were sent before it count as never sent.
    ResetForgetsSent = "reset-forgets-sent",
    /// A reset, a skip or a removal keeps the tokens.
    GenerationKept = "generation-kept",
    /// The owner after a reset, a skip or a removal does not wait for requests in flight.
    ResetUnsettled = "reset-unsettled",
    /// A second reset forgets how long the owners before the first one may continue to send.
    SecondResetForgetsLease = "second-reset-forgets-lease",
    /// A new cursor assumes that no earlier cursor sent anything.
    NewCursorSentNothing = "new-cursor-sent-nothing",
    /// An attempt does not wait for a later round of the attempt before.
    LaterRoundForgotten = "later-round-forgotten",
    /// A batch learns that its later round is announced while a swap that settles the cursor may still land.
    AnnouncedTooEarly = "announced-too-early",
    /// A later round acts on an uncertain answer.
    UncertainLaterRound = "uncertain-later-round",
    /// A successor does not learn of later rounds.
    LaterRoundUnannounced = "later-round-unannounced",
    /// A skip inside a planned batch leaves the batch's tokens as they are.
    SkipKeepsTokens = "skip-keeps-tokens",
    /// A skip inside a planned batch keeps the refusals of the chunks before the skip.
    SkipKeepsRefusals = "skip-keeps-refusals",
    /// A consumer sends the halves of a refused chunk before the cursor records the refusal.
    HalvesBeforeRefusal = "halves-before-refusal",
    /// An address that was compared once is used again without a comparison.
    AddressTrusted = "address-trusted",
    /// An attempt forgets that an earlier one found a token without its rows.
    LossForgotten = "loss-forgotten",
    /// An owner sends a chunk whole although the cursor records its refusal.
    RefusedSentAgain = "refused-sent-again",
    /// A refused row gets no dead letter.
    LetterForgotten = "letter-forgotten",
    /// An owner treats a cursor with its own epoch as its own, whoever opened it.
    EpochFences = "epoch-fences",
    /// An owner whose cursor was removed creates a new one.
    RemovalIgnored = "removal-ignored",
    /// A lease runs by the uptime alone, whatever the wall clock shows.
    WallClockIgnored = "wall-clock-ignored",
    /// A request in flight survives the expiry of the lease.
    RequestOutlivesLease = "request-outlives-lease",
    /// An owner sends rows on an answer of the sink that is older than the lease.
    AnswerOutlivesLease = "answer-outlives-lease",
    /// An opening forgets the longer lease of a fenced owner.
    LongestLeaseForgotten = "longest-lease-forgotten",
    /// The owner after a reset, a skip or a removal does not wait for the leases of earlier owners.
    LeaseNotOutlived = "lease-not-outlived",
    /// An owner sends a predecessor's planned batches as new ones if the log was not readable at the opening.
    InheritedSentAsNew = "inherited-sent-as-new",
    /// A replay names its rows' source with a name that a consumer can have.
    ReplaySharesName = "replay-shares-name",
    /// A consumer may take the name of a repair's cursor.
    RepairNameFree = "repair-name-free",
    /// Rows that arrived under tokens of another generation are sent again although a replica may have them.
    UncertainTrusted = "uncertain-trusted",
    /// A later round acts on a question that was asked while earlier requests were in flight.
    LaterRoundUnsettled = "later-round-unsettled",
    /// A chunk of which the sink has some rows is sent whole.
    WholeChunkAgain = "whole-chunk-again",
    /// Ending a request does not end the requests that another server forwarded for it.
    SettledByOwnId = "settled-by-own-id",
    /// The consumer ends requests at the current address, and those at other addresses continue.
    SettledAtOneAddress = "settled-at-one-address",
    /// A request that fails at one address goes to another one within the same attempt, without a question.
    FailoverWithinAttempt = "failover-within-attempt",
    /// An owner checks its lease once per batch.
    LeaseCheckedOnce = "lease-checked-once",
}

/// Returns true if this bug is planted.
#[cfg(not(feature = "planted-bugs"))]
pub const fn is(_: Bug) -> bool {
    false
}

/// Returns true if this bug is planted.
///
/// # Panics
/// If `MILLPOND_PLANTED_BUG` names no bug.
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
