//! The conformance cases: states of a cluster as one node sees it, each with packets and what has to happen to them. What `kube-proxy
//! explain` tells of each packet is compared with what happened to it.
//!
//! The cases are not part of this repository: they lie beside it, in `../shared/conformance/cases`, or where `$CONFORMANCE_CASES`
//! says, and their README says what their fields mean. `make test` runs this when they are there, and the guests of `vm-tests` do. Left
//! out are those about a feature gate that is gone (`gate-locked-since-1.35`). Steps of sequences follow each other on one live proxy,
//! and of a UDP flow that goes on from step to step `explain` has to know where the kernel sends it.

mod case;
mod explained;
mod judge;
mod network;
mod run;
