//! The policy-model server: calls, held replies, cuts, the capture ledger and the engines behind it.
