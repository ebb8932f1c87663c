//! The project itself: which part of the source may name which, and whether the pages agree with
//! the program and its tests.

#[path = "../support/mod.rs"]
mod support;

mod documents;
mod functions;
mod installer;
mod readme;
mod rooms;
