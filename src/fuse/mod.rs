//! The FUSE adapter: every method is call, match, reply.
