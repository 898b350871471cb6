//! A deterministic inference engine with its token store and its control endpoint, for tests and the demo.
