//! The section of the file from which each mode takes its settings, as in upstream's conversion of the file: a file without a mode is one
//! for mode iptables, and mode ipvs has sync periods of its own but masquerades as section `iptables` says.
//!
//! Decoding copies the settings of the mode to section `nftables`, which the program uses in every mode, and warns about each setting
//! without effect. Fields of `nftables` that upstream does not have count in every mode.

use super::{GoDuration, KubeProxyConfiguration, Nftables};

impl KubeProxyConfiguration {
    /// Returns the section from which the mode takes its sync periods.
    pub(crate) fn section(&self) -> &'static str {
        match self.mode.as_str() {
            "nftables" => "nftables",
            "ipvs" => "ipvs",
            _ => "iptables",
        }
    }

    /// Returns the path at which the mode looks for one of upstream's fields, given its path in mode nftables.
    pub(crate) fn path_in_mode(&self, path: &str) -> String {
        match (path.strip_prefix("nftables."), self.section()) {
            (None, _) => path.to_owned(),
            (Some("masqueradeAll"), "ipvs") => "iptables.masqueradeAll".to_owned(),
            (Some(field), section) => format!("{section}.{field}"),
        }
    }

    /// Returns the bit of the packet mark that requests masquerading in the mode of the configuration.
    pub(crate) fn masquerade_bit(&self) -> i32 {
        if self.section() == "nftables" { self.nftables.masquerade_bit } else { self.iptables.masquerade_bit }
    }

    /// Returns `(syncPeriod, minSyncPeriod)` of the section of the mode.
    fn periods(&self) -> (GoDuration, GoDuration) {
        match self.section() {
            "nftables" => (self.nftables.sync_period, self.nftables.min_sync_period),
            "ipvs" => (self.ipvs.sync_period, self.ipvs.min_sync_period),
            _ => (self.iptables.sync_period, self.iptables.min_sync_period),
        }
    }

    /// Copies the sync periods of the mode to section `nftables`.
    pub(crate) fn adopt_periods(&mut self) {
        (self.nftables.sync_period, self.nftables.min_sync_period) = self.periods();
    }

    /// Copies the settings of the mode to section `nftables`. Returns the warnings.
    pub(super) fn adopt_sections(&mut self) -> Vec<String> {
        let mut warnings = self.in_section_of_another_mode();
        if self.section() == "ipvs" {
            warnings.extend(self.missing_from_ipvs());
        }
        if self.section() != "nftables" {
            self.nftables.masquerade_all = self.iptables.masquerade_all;
        }
        self.adopt_periods();
        warnings
    }

    /// Names each setting that is in a section where the mode does not look for it, and that differs from the one in use.
    fn in_section_of_another_mode(&self) -> Vec<String> {
        let default = Nftables::default();
        let (section, nftables) = (self.section(), &self.nftables);
        let of_iptables = (self.iptables.masquerade_all, self.iptables.masquerade_bit);
        let of_nftables = (nftables.masquerade_all, nftables.masquerade_bit);
        let (idle, (all, bit), used, in_use) = match section {
            "nftables" => ("iptables", of_iptables, "nftables", of_nftables),
            _ => ("nftables", of_nftables, "iptables", of_iptables),
        };
        let (sync, min) = self.periods();
        let is_lost = |period, default, in_use| ![default, in_use].contains(&period);
        let fields = [
            ("masqueradeAll", used, all && !in_use.0),
            ("masqueradeBit", used, ![default.masquerade_bit, in_use.1].contains(&bit)),
            ("syncPeriod", section, is_lost(nftables.sync_period, default.sync_period, sync)),
            ("minSyncPeriod", section, is_lost(nftables.min_sync_period, default.min_sync_period, min)),
        ];
        let mode = if self.mode.is_empty() { "without a mode".to_owned() } else { format!("in mode {}", self.mode) };
        let warning = |(field, used, _)| {
            format!("{idle}.{field} has no effect {mode}, as in upstream's kube-proxy: set {used}.{field}")
        };
        fields.into_iter().filter(|(_, _, lost)| *lost).map(warning).collect()
    }

    /// Names each setting of mode ipvs that this program does not have.
    fn missing_from_ipvs(&self) -> impl Iterator<Item = String> {
        let ipvs = &self.ipvs;
        let fields = [
            (ipvs.strict_arp, "strictARP", "no interface gets the addresses of Services, so none answers ARP for them"),
            (!ipvs.tcp_timeout.is_zero(), "tcpTimeout", "set conntrack.tcpEstablishedTimeout"),
            (
                !ipvs.tcp_fin_timeout.is_zero(),
                "tcpFinTimeout",
                "set sysctl net.netfilter.nf_conntrack_tcp_timeout_fin_wait",
            ),
            (!ipvs.udp_timeout.is_zero(), "udpTimeout", "set conntrack.udpTimeout and conntrack.udpStreamTimeout"),
        ];
        let set = fields.into_iter().filter(|(is_set, _, _)| *is_set);
        set.map(|(_, field, instead)| format!("ipvs.{field} has no effect in this kube-proxy: {instead}"))
    }
}
