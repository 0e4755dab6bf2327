"""A node: containerd, kubelet and kube-proxy on a separate machine, with a bridge for its pods."""

import json
from pathlib import Path

import yaml

from tests.cluster.control_plane import KUBELET, NODE_NAME, PROXY, ControlPlane
from tests.cluster.machine import HOST, NODE, PODS, SERVICES, Machine
from tests.compose.engine import EngineError

PAUSE = "pgrole.dev/pause:1"
_DNS = SERVICES.rpartition(".")[0] + ".10"  # in dns.yaml
KubeConfig = dict[str, object]


class Node:
    """`start` it once; it ends with its machine. It writes only to `folder`."""

    def __init__(self, machine: Machine, folder: Path, programs: Path, control_plane: ControlPlane) -> None:
        self.machine = machine
        self._folder = folder
        self._programs = programs
        self._control_plane = control_plane
        self._socket = folder / "containerd.sock"

    def start(self) -> None:
        """Starts its programs; the cluster reports when the node is Ready."""
        self._write_network()
        self.machine.start(
            self._folder / "containerd.log",
            *("env", f"PATH={self._programs}:/usr/sbin:/usr/bin:/sbin:/bin"),
            *(self._programs / "containerd", "--config", self._write("containerd.toml", self._containerd())),
        )

    def join(self) -> None:
        self.machine.start(
            self._folder / "kubelet.log",
            self._programs / "kubelet",
            f"--config={self._write('kubelet.yaml', yaml.safe_dump(self._kubelet()))}",
            f"--kubeconfig={self._control_plane.kubeconfig_of(KUBELET)}",
            f"--root-dir={self._folder / 'kubelet'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE}",
        )
        self.machine.start(
            self._folder / "kube-proxy.log",
            self._programs / "kube-proxy",
            f"--config={self._write('kube-proxy.yaml', yaml.safe_dump(self._proxy()))}",
        )

    def load(self, archive: Path) -> None:
        """Loads the images of an archive made by `docker save`, under their names there."""
        self.ctr("images", "import", str(archive))

    def ctr(self, *arguments: str) -> str:
        """Runs containerd's command line client in the namespace of Kubernetes. Raises EngineError."""
        return self.machine.run(self._programs / "ctr", f"--address={self._socket}", "--namespace=k8s.io", *arguments)

    def is_running(self) -> bool:
        """Tells whether containerd answers."""
        self.machine.check()
        try:
            self.ctr("version")
        except EngineError:
            return False
        return True

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def _write_network(self) -> None:
        folder = self._folder / "cni"
        folder.mkdir()
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self._folder / "addresses"),
                        "ranges": [[{"subnet": PODS}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        (folder / "10-pods.conflist").write_text(json.dumps(network), encoding="utf-8")
        self._write("resolv.conf", f"nameserver {HOST}\n")

    def _containerd(self) -> str:
        runtime = "plugins.'io.containerd.cri.v1.runtime'"
        return f"""
            version = 3
            root = '{self._folder}/containerd'
            state = '{self._folder}/run'
            disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.internal.v1.tracing']
            [grpc]
            address = '{self._socket}'
            [ttrpc]
            address = '{self._socket}.ttrpc'
            [plugins.'io.containerd.cri.v1.images'.pinned_images]
            sandbox = '{PAUSE}'
            [{runtime}]
            restrict_oom_score_adj = true  # lowering it is not everywhere allowed, even for root
            [{runtime}.cni]
            bin_dirs = ['{self._programs}']
            conf_dir = '{self._folder}/cni'
            [{runtime}.containerd.runtimes.runc]
            runtime_type = 'io.containerd.runc.v2'
            [{runtime}.containerd.runtimes.runc.options]
            SystemdCgroup = false
        """

    def _kubelet(self) -> KubeConfig:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},  # only this machine reaches it
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.machine.group,
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [_DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self._folder / "resolv.conf"),
            "podLogsDir": str(self._folder / "logs"),
            "volumePluginDir": str(self._folder / "plugins"),
            "evictionHard": {"memory.available": "100Mi"},  # ignores how full this machine's disk is
            "imageGCHighThresholdPercent": 100,
        }

    def _proxy(self) -> KubeConfig:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self._control_plane.kubeconfig_of(PROXY))},
            "hostnameOverride": NODE_NAME,
            "mode": "iptables",
            "clusterCIDR": PODS,
            "bindAddress": "0.0.0.0",
            "conntrack": {"maxPerCore": 0, "min": 0},  # these belong to the whole machine
        }
