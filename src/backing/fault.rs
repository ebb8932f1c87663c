//! See [`crate::backing`].
