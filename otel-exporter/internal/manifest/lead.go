package manifest

// This file has the lead: which producer commits for others. No promise depends on it: the transition of a commit does
// not look at it. manifest/src/manifest/leader.rs does the same in Rust.

// IsLedBy reports whether this producer leads.
func (m *Manifest) IsLedBy(id ProducerID) bool { return m.Leader != nil && m.Leader.Producer == id }

// WithLeader returns a copy that this producer leads, for the state that follows this one.
func (m *Manifest) WithLeader(id ProducerID, address string) *Manifest {
	next := *m
	next.Leader = &Leader{Producer: id, Term: m.Stamp.Version + 1, Address: address}
	return &next
}

// WithShared returns a copy that counts a commit with another producer's claim, if this producer leads.
func (m *Manifest) WithShared(id ProducerID) *Manifest {
	if !m.IsLedBy(id) {
		return m
	}
	next, leader := *m, *m.Leader
	leader.Shared++
	next.Leader = &leader
	return &next
}

// WithoutLeader returns a copy without a leader, if this producer leads.
func (m *Manifest) WithoutLeader(id ProducerID) *Manifest {
	if !m.IsLedBy(id) {
		return m
	}
	next := *m
	next.Leader = nil
	return &next
}

// IsSpent reports whether the producer has used its last number without records.
func (r ProducerRow) IsSpent() bool { return r.Commit > 0 && r.Count == 0 }
