"""Every public function on inputs that a reviewer tries first; `checks` says which."""
