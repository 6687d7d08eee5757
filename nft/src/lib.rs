//! nf_tables over netlink.
