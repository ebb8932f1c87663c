//! Identities, rosters and slots. PURE.
