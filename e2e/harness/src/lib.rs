//! Brings a mesh up from real processes, kills it, and asks it how it is.
