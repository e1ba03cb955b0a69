from pathlib import Path
from gpusnap.errors import CriuError
def explain_failure(log: Path, output: str, message: str) -> CriuError:
    t = log.read_text(errors='replace') if log.exists() else ''
    return CriuError("CRIU failed: " + "\n".join(l for l in t.splitlines() if 'Error' in l) + output+message)
