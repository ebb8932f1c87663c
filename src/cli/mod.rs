//! The command line: parse, run, report.
