"""All migrations up to 0022 in one: a fresh database has its final tables at once (ADR 0072, ADR 0089)."""

from pathlib import Path

import django.contrib.auth.models
import django.contrib.auth.validators
import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
import django.utils.timezone
import tenants.models
import tenants.roles
from django.conf import settings
from django.db import migrations, models

from tenants.create_tables import CreateTables

GUARDS = Path(__file__).with_name("0001_guards.sql").read_text()
SEARCH_TERMS = Path(__file__).with_name("0001_search_terms.sql").read_text()


class Migration(migrations.Migration):

    replaces = [('tenants', '0001_initial'), ('tenants', '0002_guards'), ('tenants', '0003_audit'), ('tenants', '0004_audit_by_time'), ('tenants', '0005_quota_used_then'), ('tenants', '0006_secrets'), ('tenants', '0007_retention'), ('tenants', '0008_image_patterns'), ('tenants', '0009_search'), ('tenants', '0010_audit_edits'), ('tenants', '0011_audit_chain'), ('tenants', '0012_storage_limit'), ('tenants', '0013_sessions_and_one_time_passwords'), ('tenants', '0014_without_the_database_admin'), ('tenants', '0015_membership_accepted'), ('tenants', '0016_audit_images'), ('tenants', '0017_cohorts'), ('tenants', '0018_user_and_job_limits'), ('tenants', '0019_group_mappings'), ('tenants', '0020_two_factor'), ('tenants', '0021_passkeys'), ('tenants', '0022_projects')]

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        migrations.RunSQL(SEARCH_TERMS),
        CreateTables([
            migrations.CreateModel(
                name='AuditSeal',
                fields=[
                    ('n', models.BigIntegerField(primary_key=True, serialize=False)),
                    ('entry_id', models.BigIntegerField(unique=True)),
                    ('actor_id', models.BigIntegerField(null=True)),
                    ('digest', models.CharField(max_length=64)),
                    ('hash', models.CharField(max_length=64)),
                    ('removed', models.BooleanField(default=False)),
                ],
            ),
            migrations.CreateModel(
                name='Tenant',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('slug', models.SlugField(max_length=40, unique=True)),
                    ('name', models.CharField(max_length=120)),
                    ('state', models.CharField(choices=[('active', 'Active'), ('suspended', 'Suspended')], default='active', max_length=12)),
                    ('priorities', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=12), default=tenants.models.default_priorities, size=None)),
                    ('jobs_limit', models.PositiveIntegerField(blank=True, null=True)),
                    ('jobs_used', models.PositiveIntegerField(default=0)),
                    ('storage_limit', models.BigIntegerField(blank=True, null=True)),
                    ('image_patterns', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=300), blank=True, null=True, size=None)),
                    ('cohort', models.SlugField(blank=True, db_default='', default='', max_length=40)),
                    ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                    ('user_jobs_limit', models.PositiveIntegerField(blank=True, null=True)),
                    ('max_time_s', models.PositiveIntegerField(blank=True, null=True)),
                ],
                options={
                    'constraints': [models.CheckConstraint(condition=models.Q(('storage_limit__gte', 0)), name='storage_limit_not_negative')],
                },
            ),
            migrations.CreateModel(
                name='RetentionRule',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='retention_rules', to='tenants.tenant')),
                    ('kind', models.CharField(max_length=12)),
                    ('days', models.PositiveIntegerField(null=True)),
                    ('bytes', models.BigIntegerField(null=True)),
                ],
                options={
                    'constraints': [models.UniqueConstraint(fields=('tenant', 'kind'), name='retention_rule_once')],
                },
            ),
            migrations.CreateModel(
                name='User',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('password', models.CharField(max_length=128, verbose_name='password')),
                    ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                    ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                    ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                    ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                    ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                    ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                    ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                    ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                    ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                    ('is_service_account', models.BooleanField(default=False)),
                    ('preferences', models.JSONField(blank=True, default=dict)),
                    ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                    ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
                    ('last_tenant', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='tenants.tenant')),
                ],
                options={
                    'verbose_name': 'user',
                    'verbose_name_plural': 'users',
                    'abstract': False,
                    'constraints': [models.CheckConstraint(condition=models.Q(('is_service_account', False), models.Q(('password__startswith', '!'), ('is_superuser', False)), _connector='OR'), name='service_account_without_login')],
                },
                managers=[
                    ('objects', django.contrib.auth.models.UserManager()),
                ],
            ),
            migrations.CreateModel(
                name='AuditEntry',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('tenant', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='audit', to='tenants.tenant')),
                    ('actor', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                    ('action', models.CharField(max_length=60)),
                    ('target', models.CharField(blank=True, max_length=200)),
                    ('reason', models.CharField(blank=True, max_length=500)),
                    ('details', models.JSONField(default=dict)),
                    ('request_id', models.CharField(blank=True, max_length=64)),
                    ('address', models.GenericIPAddressField(null=True)),
                    ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ],
                options={
                    'verbose_name_plural': 'audit entries',
                    'indexes': [models.Index(models.F('tenant'), models.OrderBy(models.F('id'), descending=True), name='audit_by_tenant'), models.Index(fields=['actor', 'action', 'target', 'at'], name='audit_repeat'), models.Index(fields=['-at', '-id'], name='audit_by_time'), django.contrib.postgres.indexes.GinIndex(models.Func(models.Value(1, output_field=models.IntegerField()), models.F('tenant'), models.F('actor'), models.Value([], output_field=django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)), models.F('action'), models.F('target'), function='search_terms', output_field=django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)), fastupdate=False, name='audit_search'), models.Index(models.F('tenant'), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('action__startswith', 'tenant.')), name='audit_edits'), models.Index(models.F('tenant'), models.OrderBy(models.F('id'), descending=True), condition=models.Q(('action', 'images.change')), name='audit_images')],
                },
            ),
            migrations.CreateModel(
                name='OneTimePassword',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='one_time_password', to=settings.AUTH_USER_MODEL)),
                    ('digest', models.CharField(max_length=64)),
                    ('expires_at', models.DateTimeField()),
                    ('used_at', models.DateTimeField(null=True)),
                ],
            ),
            migrations.CreateModel(
                name='QuotaChange',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='quota_changes', to='tenants.tenant')),
                    ('gpu_type', models.SlugField(max_length=40)),
                    ('old_limit', models.PositiveIntegerField()),
                    ('new_limit', models.PositiveIntegerField()),
                    ('used_then', models.PositiveIntegerField(null=True)),
                    ('reason', models.CharField(max_length=500)),
                    ('actor', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                    ('change_set', models.UUIDField(db_index=True)),
                    ('terms', models.JSONField(db_default={}, default=dict)),
                    ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ],
                options={
                    'indexes': [models.Index(fields=['-at', '-id'], name='quota_change_by_time')],
                },
            ),
            migrations.CreateModel(
                name='Secret',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('tenant', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to='tenants.tenant')),
                    ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to=settings.AUTH_USER_MODEL)),
                    ('name', models.CharField(max_length=63)),
                    ('key_id', models.CharField(max_length=16)),
                    ('sealed', models.BinaryField()),
                    ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                    ('updated_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ],
                options={
                    'constraints': [models.CheckConstraint(condition=models.Q(('tenant', None), ('user', None), _connector='XOR'), name='secret_of_one'), models.UniqueConstraint(fields=('tenant', 'name'), name='secret_once_in_tenant'), models.UniqueConstraint(fields=('user', 'name'), name='secret_once_of_user')],
                },
            ),
            migrations.CreateModel(
                name='Session',
                fields=[
                    ('session_key', models.CharField(max_length=40, primary_key=True, serialize=False, verbose_name='session key')),
                    ('session_data', models.TextField(verbose_name='session data')),
                    ('expire_date', models.DateTimeField(db_index=True, verbose_name='expire date')),
                    ('user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='sessions', to=settings.AUTH_USER_MODEL)),
                    ('address', models.GenericIPAddressField(null=True)),
                    ('agent', models.CharField(blank=True, max_length=300)),
                    ('started_at', models.DateTimeField()),
                    ('seen_at', models.DateTimeField()),
                ],
                options={
                    'verbose_name': 'session',
                    'verbose_name_plural': 'sessions',
                    'abstract': False,
                },
            ),
            migrations.CreateModel(
                name='Token',
                fields=[
                    ('digest', models.CharField(max_length=128, primary_key=True, serialize=False)),
                    ('token_key', models.CharField(db_index=True, max_length=25)),
                    ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='auth_token_set', to=settings.AUTH_USER_MODEL)),
                    ('created', models.DateTimeField(auto_now_add=True)),
                    ('expiry', models.DateTimeField(blank=True, null=True)),
                    ('name', models.CharField(max_length=80)),
                    ('tenant', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='tokens', to='tenants.tenant')),
                    ('role_ceiling', models.CharField(choices=tenants.models.role_choices, default=tenants.roles.Role['MANAGER'], max_length=12)),
                    ('last_used_at', models.DateTimeField(blank=True, null=True)),
                ],
                options={
                    'abstract': False,
                },
            ),
            migrations.CreateModel(
                name='Quota',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='quotas', to='tenants.tenant')),
                    ('gpu_type', models.SlugField(max_length=40)),
                    ('limit', models.PositiveIntegerField(default=0)),
                    ('used', models.PositiveIntegerField(default=0)),
                    ('borrowing_limit', models.PositiveIntegerField(blank=True, null=True)),
                    ('lending_limit', models.PositiveIntegerField(blank=True, null=True)),
                    ('weight', models.PositiveIntegerField(db_default=1, default=1)),
                    ('user_limit', models.PositiveIntegerField(blank=True, null=True)),
                    ('gang_limit', models.PositiveIntegerField(blank=True, null=True)),
                ],
                options={
                    'ordering': [models.OrderBy(models.F('gpu_type'))],
                    'constraints': [models.UniqueConstraint(fields=('tenant', 'gpu_type'), name='quota_once'), models.CheckConstraint(condition=models.Q(('used__gte', 0), ('limit__gte', 0)), name='quota_not_negative'), models.CheckConstraint(condition=models.Q(('weight__gte', 1)), name='quota_weight_positive')],
                },
            ),
            migrations.CreateModel(
                name='Membership',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                    ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='tenants.tenant')),
                    ('role', models.CharField(choices=tenants.models.role_choices, max_length=12)),
                    ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                    ('accepted_at', models.DateTimeField(null=True)),
                    ('group', models.CharField(blank=True, db_default='', default='', max_length=200)),
                ],
                options={
                    'constraints': [models.UniqueConstraint(fields=('user', 'tenant'), name='membership_once')],
                },
            ),
            migrations.CreateModel(
                name='GroupMapping',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('group', models.CharField(max_length=200)),
                    ('role', models.CharField(choices=tenants.models.role_choices, max_length=12)),
                    ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='group_mappings', to='tenants.tenant')),
                ],
                options={
                    'constraints': [models.UniqueConstraint(fields=('group', 'tenant'), name='group_mapping_once')],
                },
            ),
            migrations.CreateModel(
                name='AuthenticatorApp',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('key_id', models.CharField(max_length=16)),
                    ('sealed', models.BinaryField()),
                    ('last_step', models.BigIntegerField(default=0)),
                    ('created_at', models.DateTimeField()),
                    ('confirmed_at', models.DateTimeField(null=True)),
                    ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='authenticator_apps', to=settings.AUTH_USER_MODEL)),
                ],
                options={
                    'constraints': [models.UniqueConstraint(condition=models.Q(('confirmed_at__isnull', False)), fields=('user',), name='authenticator_app_once'), models.UniqueConstraint(condition=models.Q(('confirmed_at__isnull', True)), fields=('user',), name='authenticator_app_begun_once')],
                },
            ),
            migrations.CreateModel(
                name='RecoveryCode',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('digest', models.CharField(max_length=64)),
                    ('used_at', models.DateTimeField(null=True)),
                    ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='recovery_codes', to=settings.AUTH_USER_MODEL)),
                ],
                options={
                    'constraints': [models.UniqueConstraint(fields=('user', 'digest'), name='recovery_code_once')],
                },
            ),
            migrations.CreateModel(
                name='Passkey',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('name', models.CharField(max_length=80)),
                    ('host', models.CharField(max_length=253)),
                    ('credential_id', models.BinaryField(max_length=1023, unique=True)),
                    ('credential', models.BinaryField()),
                    ('transports', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=20), default=list, size=None)),
                    ('sign_count', models.BigIntegerField(default=0)),
                    ('created_at', models.DateTimeField()),
                    ('last_used_at', models.DateTimeField(null=True)),
                    ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='passkeys', to=settings.AUTH_USER_MODEL)),
                ],
            ),
            migrations.CreateModel(
                name='PasskeyChallenge',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('text', models.CharField(max_length=64)),
                    ('adds', models.BooleanField()),
                    ('created_at', models.DateTimeField()),
                    ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='passkey_challenges', to=settings.AUTH_USER_MODEL)),
                ],
            ),
            migrations.CreateModel(
                name='Project',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('slug', models.SlugField(max_length=40)),
                    ('weight', models.PositiveIntegerField(db_default=1, default=1)),
                    ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                    ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='projects', to='tenants.tenant')),
                ],
                options={
                    'ordering': [models.OrderBy(models.F('slug'))],
                    'constraints': [models.UniqueConstraint(fields=('tenant', 'slug'), name='project_once'), models.CheckConstraint(condition=models.Q(('weight__gte', 1)), name='project_weight_positive')],
                },
            ),
            migrations.CreateModel(
                name='ProjectShare',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('gpu_type', models.SlugField(max_length=40)),
                    ('guarantee', models.PositiveIntegerField(default=0)),
                    ('limit', models.PositiveIntegerField(blank=True, null=True)),
                    ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='shares', to='tenants.project')),
                ],
                options={
                    'ordering': [models.OrderBy(models.F('gpu_type'))],
                    'constraints': [models.UniqueConstraint(fields=('project', 'gpu_type'), name='project_share_once')],
                },
            ),
            migrations.CreateModel(
                name='ProjectChange',
                fields=[
                    ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                    ('project', models.SlugField(max_length=40)),
                    ('gpu_type', models.SlugField(blank=True, max_length=40)),
                    ('terms', models.JSONField(default=dict)),
                    ('reason', models.CharField(max_length=500)),
                    ('change_set', models.UUIDField(db_index=True)),
                    ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                    ('actor', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                    ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='project_changes', to='tenants.tenant')),
                ],
                options={
                    'indexes': [models.Index(fields=['tenant', '-id'], name='project_change_by_time')],
                },
            ),
        ]),
        migrations.RunSQL(GUARDS),
    ]
