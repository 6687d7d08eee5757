//! Remembered clients (session affinity) that expire while the proxy works: the kernel forgets them whenever their time is over, also
//! between the moment when the proxy reads the remembered clients and the moment when it deletes those whose endpoint is gone.
//!
//! With the real kernel in network namespaces, in this process, so that the kernel can be taken for one before Linux 6.3, and be held
//! up at the worst moment. `KUBE_PROXY_EXPIRY_SECONDS` has the traffic go on for so long (`make soak`). Needs root and iproute2.

mod kernel;
mod memory;
mod traffic;
