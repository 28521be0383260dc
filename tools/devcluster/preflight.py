"""stub"""
from devcluster.profiles import Profile
def require(profile: Profile) -> None:
    del profile
