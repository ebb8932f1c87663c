//! The naming rules of SPEC.md, sections 5 to 7, as an abstract model without ciphers: three
//! machines with a copy of the vault each, programs that create, rename and remove entries on all
//! of them, and a sync tool that delivers whole files, partially and in any order.
//!
//! After everything is delivered, each entry that no program removed is visible on every machine,
//! under the same name, and a lookup of that name leads to it alone. At every moment, on each
//! machine, listing and lookup agree, nothing that a key opens is hidden, and an entry whose place
//! nothing explains is marked. `KITHFS_NAMING_STEPS=n` sets the number of random steps; a failing
//! trace is reduced before it is reported.

mod machine;
mod names;
mod store;
mod trace;
