//! Tests of the API source.
